//! Checks documents of `--json` against the files of `docs/schema`, as strictly as can be: what a file does
//! not name must not be there.

#![expect(clippy::unwrap_used, clippy::missing_panics_doc, reason = "part of tests, which fail by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use jsonschema::Validator;
use serde_json::{Value, json};

/// Most faults of a document that are shown.
const MAX_SHOWN: usize = 10;

/// The file that describes the documents of this command.
#[must_use]
pub fn path(command: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema");
    folder.join(format!("{command}.schema.json"))
}

/// Asserts that a document of this command is as its schema says.
#[track_caller]
pub fn assert_valid(command: &str, document: &Value) {
    let faults = faults(command, document);
    assert!(faults.is_empty(), "{command} --json is not as its schema says:\n{}", faults.join("\n"));
}

/// What is wrong with a document of this command. Commands without a schema make no documents of their own.
#[track_caller]
#[must_use]
pub fn faults(command: &str, document: &Value) -> Vec<String> {
    let Ok(text) = fs::read_to_string(path(command)) else { return Vec::new() };
    let mut schema: Value = serde_json::from_str(&text).unwrap();
    jsonschema::meta::validate(&schema).unwrap_or_else(|error| panic!("{command}: {error}"));
    close(&mut schema);
    let validator: Validator = jsonschema::draft202012::new(&schema).unwrap();
    let shown = validator.iter_errors(document).take(MAX_SHOWN);
    shown.map(|error| format!("{}: {error}", error.instance_path())).collect()
}

/// Forbids keys that a schema does not name. The files themselves allow them, as later versions add keys.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if object.contains_key("properties") && !object.contains_key("additionalProperties") {
                object.insert("additionalProperties".to_owned(), json!(false));
            }
            object.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}
