//! Checks JSON against the schemas of `docs/schema`: the part of JSON Schema that they use, and
//! nothing else. What a schema does not name is a fault, too: the schema is the documentation.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

use serde_json::{Map, Value};
use std::path::PathBuf;

/// The words that the schemas may use. `$schema`, `title` and `description` are for people.
const WORDS: [&str; 9] =
    ["$schema", "title", "description", "type", "properties", "required", "items", "enum", "anyOf"];

pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/schema")
}

/// The schema of a command, such as `dlq-ls`.
pub fn schema(name: &str) -> Value {
    let path = folder().join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let schema = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    check_words(name, &schema);
    schema
}

/// A schema that says more than is checked would be trusted for nothing.
fn check_words(at: &str, schema: &Value) {
    for (word, value) in schema.as_object().unwrap_or_else(|| panic!("{at} is not an object")) {
        assert!(WORDS.contains(&word.as_str()), "{at}: {word} is not checked");
        match word.as_str() {
            "items" => check_words(&format!("{at}[]"), value),
            "anyOf" => {
                for one in value.as_array().unwrap() {
                    check_words(at, one);
                }
            }
            "properties" => {
                for (name, value) in value.as_object().unwrap() {
                    check_words(&format!("{at}.{name}"), value);
                }
            }
            _ => {}
        }
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    for name in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
        let name = name.as_str().unwrap();
        assert!(
            properties.is_some_and(|known| known.contains_key(name)),
            "{at}: {name} is required and not described"
        );
    }
}

/// What is wrong with a value, a line each.
pub fn faults(schema: &Value, value: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    look(schema, value, "", &mut faults);
    faults
}

fn look(schema: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
    let here = if at.is_empty() { "the whole" } else { at };
    if let Some(shapes) = schema.get("anyOf").and_then(Value::as_array) {
        let of_each = shapes.iter().map(|shape| self::faults(shape, value));
        // Of the shape that it is nearest to.
        faults.extend(of_each.min_by_key(Vec::len).unwrap());
    }
    if let Some(types) = schema.get("type") {
        let one = std::slice::from_ref(types);
        let types = types.as_array().map_or(one, Vec::as_slice);
        let types: Vec<&str> = types.iter().map(|name| name.as_str().unwrap()).collect();
        if !types.iter().any(|name| is_of(name, value)) {
            return faults.push(format!("{here} is {value}, not {types:?}"));
        }
    }
    if let Some(words) = schema.get("enum").and_then(Value::as_array)
        && !words.contains(value)
    {
        faults.push(format!("{here} is {value}, none of {words:?}"));
    }
    if let (Some(items), Value::Array(values)) = (schema.get("items"), value) {
        for (place, value) in values.iter().enumerate() {
            look(items, value, &format!("{at}[{place}]"), faults);
        }
    }
    if let (Some(properties), Value::Object(members)) = (schema.get("properties"), value) {
        look_into(schema, properties.as_object().unwrap(), members, at, faults);
    }
}

fn look_into(
    schema: &Value,
    properties: &Map<String, Value>,
    members: &Map<String, Value>,
    at: &str,
    faults: &mut Vec<String>,
) {
    for name in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
        if !members.contains_key(name.as_str().unwrap()) {
            faults.push(format!("{at}.{} is missing", name.as_str().unwrap()));
        }
    }
    for (name, value) in members {
        match properties.get(name) {
            Some(schema) => look(schema, value, &format!("{at}.{name}"), faults),
            None => faults.push(format!("{at}.{name} is not described")),
        }
    }
}

fn is_of(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("the type {other} is not checked"),
    }
}
