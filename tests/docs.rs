//! Keeps the documents true: what the code knows, `docs/protocol.md` names.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use chunking::Kind;
use chunking::message::{Features, LimitId, Reason};
use std::path::Path;

fn document(file: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

#[test]
fn the_protocol_document_has_every_type_feature_reason_and_limit() {
    let text = document("docs/protocol.md");
    for kind in Kind::ALL {
        let row = format!("| {} | {} |", kind.code(), kind.name());
        assert!(text.contains(&row), "no row {row:?}");
        if kind.code() >= 30 {
            let heading = format!("### {} {}\n", kind.code(), kind.name());
            assert!(text.contains(&heading), "no heading {heading:?}");
        } else {
            let section = text.lines().any(|line| line.starts_with("### ") && line.contains(kind.name()));
            assert!(section, "no section for {kind}");
        }
    }
    for (feature, name) in Features::KNOWN {
        let row = format!("| {} | `{name}` |", feature.0.trailing_zeros());
        assert!(text.contains(&row), "no row {row:?}");
    }
    for (reason, name) in Reason::KNOWN {
        let cell = format!("| {} {name} |", reason.0);
        assert!(text.contains(&cell), "no cell {cell:?}");
    }
    for (id, name) in LimitId::KNOWN {
        let cell = format!("| {} | {name} ", id.0);
        assert!(text.contains(&cell), "no cell {cell:?}");
    }
}

#[test]
fn the_readme_names_the_test_command_that_ci_runs() {
    let command = "scripts/test";
    assert!(document("README.md").contains(command) && document(".ci/run").contains(command));
}
