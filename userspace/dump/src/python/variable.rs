//! Variables of Python frames, in words.

use serde::{Deserialize, Serialize};

use cpython::Value;
use inspect::process::printable;

/// Maximum number of characters of a value that are kept.
const MAX_VALUE: usize = 160;

/// A variable of a Python frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonVariable {
    pub name: String,
    /// A text, a number, or texts with commas between them.
    pub value: String,
}

impl PythonVariable {
    pub(super) fn of((name, value): (String, Value)) -> Self {
        let value = match value {
            Value::Text(text) => text,
            Value::Number(number) => number.to_string(),
            Value::Texts(texts, length) => {
                let more = if length > texts.len() { ", …" } else { "" };
                format!("{}{more}", texts.join(", "))
            }
        };
        let short = |text: &str| {
            let text = printable(text);
            if text.chars().count() <= MAX_VALUE {
                return text;
            }
            text.chars().take(MAX_VALUE - 1).chain(['…']).collect()
        };
        Self { name: short(&name), value: short(&value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_cut() {
        let texts = Value::Texts(vec!["a".to_owned(), "b\x1b[2J".to_owned()], 20);
        let value = PythonVariable::of(("keys".to_owned(), texts)).value;
        assert!(value.starts_with("a, b") && value.ends_with(", …") && !value.contains('\x1b'), "{value}");
        let long = PythonVariable::of(("key".to_owned(), Value::Text("x".repeat(5000)))).value;
        assert_eq!(long.chars().count(), MAX_VALUE);
    }
}
