//! Parses leader addresses, as written by people and other nodes.

use serde_json::Value;

/// The longest address a NotLeader may name: a host name and a port.
const ADDRESS_BYTES_MAX: usize = 262;

/// The address in a NotLeader, if it names one that could be dialled (T20).
pub fn redirect_in(payload: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(payload).ok()?;
    let address = value.get("leader")?.as_str()?;
    is_address(address).then(|| address.to_owned())
}

/// Whether a text has the form `host:port`.
pub fn is_address(text: &str) -> bool {
    let plain = text.len() <= ADDRESS_BYTES_MAX
        && !text.contains(|c: char| c.is_whitespace() || c.is_control());
    let port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    plain && text.rsplit_once(':').is_some_and(|(host, number)| !host.is_empty() && port(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t20_a_redirect_names_an_address_or_none() {
        let leader = |json: &str| redirect_in(json.as_bytes());
        assert_eq!(leader(r#"{"leader":"node-2:5001"}"#).as_deref(), Some("node-2:5001"));
        assert_eq!(leader(r#"{"leader":"[::1]:5001"}"#).as_deref(), Some("[::1]:5001"));
        for odd in [
            r#"{"leader":null}"#,
            r#"{"leader":7}"#,
            r#"{"leader":""}"#,
            r#"{"leader":"node-2"}"#,
            r#"{"leader":":5001"}"#,
            r#"{"leader":"a b:5001"}"#,
            r#"{"leader":"node-2:70000"}"#,
            r#"{"leader":"node-2:0"}"#,
            "{}",
            "nonsense",
            "",
        ] {
            assert_eq!(leader(odd), None, "{odd}");
        }
    }
}
