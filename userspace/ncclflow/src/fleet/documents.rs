//! JSON documents of ncclflow that come from another host: of this version, or of one before or after it.

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, de::DeserializeOwned};

/// Most values of a document; of a longer one, into which dumps of many hosts were merged, least bytes for each
/// value. Dumps have 15 bytes for each, without spaces.
const MAX_VALUES: usize = 1 << 21;
const MIN_BYTES: usize = 8;
/// Most bytes that a value takes in memory.
const VALUE: usize = 100;

/// What all documents begin with, whatever their version.
#[derive(Deserialize)]
struct Head {
    schema: Option<u32>,
}

/// Reads the consecutive documents of a text. `what` names the command that makes them, `schema` is the
/// version that is read.
///
/// # Errors
/// One is something else, of another version of the schema, or has more values than any that is ours.
pub fn documents<T: DeserializeOwned>(text: &[u8], what: &str, schema: u32) -> Result<Vec<T>> {
    let mut all = Vec::new();
    let mut documents = serde_json::Deserializer::from_slice(text).into_iter::<Head>();
    let mut from = 0;
    while let Some(head) = documents.next() {
        let not_one = || format!("it is not a document of `ncclflow {what} --json`");
        let found = head.with_context(not_one)?.schema.with_context(not_one)?;
        if found != schema {
            let newer = if found > schema { "a newer" } else { "an older" };
            bail!("its schema is {found}, and this ncclflow reads {schema}: it comes from {newer} ncclflow");
        }
        let to = documents.byte_offset();
        let one = text.get(from..to).unwrap_or_default();
        let (values, most) = (values(one), MAX_VALUES.max(one.len() / MIN_BYTES));
        if values > most {
            bail!("nothing of it is taken: it has {values} values, and {most} at most are read");
        }
        all.push(serde_json::from_slice(one).with_context(not_one)?);
        from = to;
    }
    Ok(all)
}

/// Returns about how many bytes a document takes in memory, with its text.
pub(super) fn weight(document: &[u8]) -> usize {
    document.len().saturating_add(values(document).saturating_mul(VALUE))
}

/// Counts the values of a document, before there is one in memory: lists, objects, and what a comma parts.
fn values(document: &[u8]) -> usize {
    let (mut count, mut is_text, mut is_escaped) = (0, false, false);
    for byte in document {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => is_text = !is_text,
            b',' | b'[' | b'{' if !is_text => count += 1,
            _ => {}
        }
    }
    count
}

/// Leaves out what a login shell says before an answer: lines up to the one at which a document begins.
pub(super) fn without_greeting(text: &[u8]) -> &[u8] {
    let mut from = 0;
    while let Some(rest) = text.get(from..) {
        if rest.starts_with(b"{") {
            return rest;
        }
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else { break };
        from += end + 1;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<serde_json::Value>> {
        documents(without_greeting(text.as_bytes()), "dump", 1)
    }

    #[test]
    fn one_after_the_other_is_read_and_a_greeting_left_out() {
        let all = read("Welcome to {node}!\n  {x}\n{\"schema\": 1, \"a\": [1]}\n{\"schema\":1}\n").unwrap();
        assert_eq!(all[0]["a"][0], 1);
        assert_eq!(all.len(), 2);
        assert!(read(" \n").unwrap().is_empty());
    }

    #[test]
    fn what_is_something_else_says_so() {
        let why = |text: &str| format!("{:#}", read(text).unwrap_err());
        for text in ["[]", "{}", "hello", "{\"schema\": \"1\"}", "{\"schema\": 1", "{\"schema\":1} x", "1"] {
            assert!(why(text).contains("not a document of `ncclflow dump --json`"), "{text}: {}", why(text));
        }
        assert!(
            why("{\"schema\": 2}")
                .contains("its schema is 2, and this ncclflow reads 1: it comes from a newer")
        );
        assert!(why("{\"schema\": 0}").contains("an older"));
        assert!(why(&"[".repeat(100_000)).contains("not a document"));
    }

    #[test]
    fn a_document_with_more_values_than_ours_have_is_not_read() {
        let with =
            |list: &str, count| format!("{{\"schema\":1,\"torchNotes\":[{}\"\"]}}", list.repeat(count));
        let error = format!("{:#}", read(&with("\"\",", 3 << 20)).unwrap_err());
        assert!(error.contains("it has 3145731 values, and 2097152 at most are read"), "{error}");
        assert_eq!(read(&with("\"[{,\\\",\",", 1 << 20)).unwrap().len(), 1, "what is in a text is no value");
        let long = format!("\"{}\",", "x".repeat(14));
        assert_eq!(read(&with(&long, 3 << 20)).unwrap().len(), 1, "dumps of many hosts");
    }
}
