//! How the result of a raw job is shown: bytes of which nothing is known here.

use std::process::ExitCode;

use base64::Engine;
use serde_json::{Value, json};
use uuid::Uuid;

use super::ending::Whereabouts;
use super::{Output, print, print_json};

/// Prints it as it came, or for programs in base64.
pub(crate) fn show_raw(
    output: Output,
    whereabouts: &Whereabouts,
    job: Uuid,
    payload: &[u8],
) -> anyhow::Result<ExitCode> {
    match output {
        Output::Table => {
            print(payload)?;
            whereabouts.say(job);
        }
        Output::Json | Output::Jsonl => {
            let text = base64::engine::general_purpose::STANDARD.encode(payload);
            let mut shown = json!({"job_id": job, "status": "RAW", "payload_base64": text});
            if let Value::Object(members) = &mut shown {
                whereabouts.put(members);
            }
            print_json(&shown)?;
        }
        Output::Quiet => {}
    }
    Ok(ExitCode::SUCCESS)
}
