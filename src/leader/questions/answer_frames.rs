//! Fits answers into frames: truncates long texts, and splits lists that exceed one frame. So no
//! name, pattern or list a peer controls can make an answer too large to send.

use serde_json::{Map, Value};

/// A text in an answer is cut to so many bytes. Ids and names of sound peers are far shorter, and
/// so are the texts for people.
const TEXT_BYTES_MAX: usize = 1024;

/// Bytes of what says that a text was cut.
const CUT_MARK_BYTES_MAX: usize = 40;

/// Bytes of one part. A frame takes four times as much, but it is held as a whole by both ends.
const PART_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of all parts together; what of its lists is over that is left out.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The parts of an answer, as JSON. Lists of the same name are joined by whoever asked.
pub(super) fn parts(mut answer: Value) -> Vec<String> {
    cut_texts(&mut answer);
    let whole = answer.to_string();
    let Value::Object(members) = answer else { return vec![whole] };
    if whole.len() <= PART_BYTES_MAX {
        return vec![whole];
    }
    let (mut parts, mut last, mut bytes, mut left_out) = (Vec::new(), Map::new(), 0, 0u64);
    for (name, member) in members {
        let Value::Array(items) = member else {
            last.insert(name, member);
            continue;
        };
        last.insert(name.clone(), Value::Array(Vec::new()));
        let mut list = List::new(&name);
        for item in items {
            let item = item.to_string();
            if bytes + item.len() > ANSWER_BYTES_MAX {
                left_out += 1;
                continue;
            }
            bytes += item.len();
            parts.extend(list.push(&item));
        }
        parts.extend(list.finish());
    }
    if left_out > 0 {
        last.insert("left_out".to_owned(), left_out.into());
    }
    parts.push(Value::Object(last).to_string());
    parts
}

/// Items of one list on their way into parts.
struct List<'a> {
    name: &'a str,
    json: String,
}

impl<'a> List<'a> {
    fn new(name: &'a str) -> Self {
        List { name, json: String::new() }
    }

    /// Adds an item; gives a part that is full.
    fn push(&mut self, item: &str) -> Option<String> {
        let full = (!self.json.is_empty() && self.json.len() + item.len() > PART_BYTES_MAX)
            .then(|| std::mem::take(&mut self.json));
        if !self.json.is_empty() {
            self.json.push(',');
        }
        self.json.push_str(item);
        full.map(|json| self.part(&json))
    }

    fn finish(self) -> Option<String> {
        (!self.json.is_empty()).then(|| self.part(&self.json))
    }

    fn part(&self, items: &str) -> String {
        format!("{{{}:[{items}]}}", Value::from(self.name))
    }
}

/// A text as an answer has it. Where thousands of long ones are listed, they are cut before they
/// are copied.
pub(in crate::leader) fn cut(text: &str) -> String {
    if text.len() <= TEXT_BYTES_MAX {
        return text.to_owned();
    }
    let kept = text.get(..text.floor_char_boundary(TEXT_BYTES_MAX)).unwrap_or_default();
    format!("{kept}… ({} bytes)", text.len())
}

fn cut_texts(value: &mut Value) {
    match value {
        // What was cut before is a little longer than what is cut here.
        Value::String(text) if text.len() > TEXT_BYTES_MAX + CUT_MARK_BYTES_MAX => {
            *text = cut(text);
        }
        Value::Array(items) => items.iter_mut().for_each(cut_texts),
        Value::Object(members) => members.values_mut().for_each(cut_texts),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn joined(parts: &[String]) -> Value {
        let mut whole = Map::new();
        for part in parts {
            let Ok(Value::Object(part)) = serde_json::from_str(part) else {
                panic!("an object: {part:.80}")
            };
            for (name, value) in part {
                match (whole.get_mut(&name), value) {
                    (Some(Value::Array(items)), Value::Array(more)) => items.extend(more),
                    (_, value) => drop(whole.insert(name, value)),
                }
            }
        }
        Value::Object(whole)
    }

    #[test]
    fn a_small_answer_is_one_part_and_a_large_one_is_the_same_when_it_is_joined() {
        let small = json!({"a": [1, 2], "b": {"c": "text"}});
        assert_eq!(parts(small.clone()), [small.to_string()]);
        let items: Vec<Value> =
            (0..5000).map(|n| json!({"id": n, "name": "x".repeat(900)})).collect();
        let large = json!({"items": items, "none": [], "leader": {"up": 1}, "more": false});
        let parts = parts(large.clone());
        assert!(parts.len() >= 5 && parts.iter().all(|part| part.len() <= PART_BYTES_MAX + 100));
        assert_eq!(joined(&parts), large);
    }

    #[test]
    fn texts_and_lists_without_end_have_one() {
        let cut = parts(json!({"id": "ä".repeat(60_000)}));
        assert!(cut[0].len() < 1100 && cut[0].contains("… (120000 bytes)"), "{:.100}", cut[0]);
        let before = super::cut(&"ä".repeat(60_000));
        assert_eq!(parts(json!({ "id": before })), cut, "once");
        let items: Vec<Value> = (0..30_000).map(|_| json!("x".repeat(1000))).collect();
        let parts = parts(json!({ "items": items }));
        assert!(parts.iter().map(String::len).sum::<usize>() < ANSWER_BYTES_MAX + PART_BYTES_MAX);
        let whole = joined(&parts);
        let listed = whole["items"].as_array().unwrap().len() as u64;
        assert_eq!(listed + whole["left_out"].as_u64().unwrap(), 30_000);
    }
}
