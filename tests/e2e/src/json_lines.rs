//! Files of JSON lines, written by processes that may have been killed.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use flate2::read::GzDecoder;
use serde::de::DeserializeOwned;

/// Most bytes of a compressed file that are read: tests are short.
const MAX_BYTES: u64 = 1 << 30;

/// Every whole line, also of a file whose name ends with `.gz`. What follows the last newline is a line that
/// its writer did not finish; it is left out.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    let text = text(path).with_context(|| format!("reading `{}`", path.display()))?;
    parse(&text).with_context(|| format!("reading `{}`", path.display()))
}

fn text(path: &Path) -> Result<String> {
    if path.extension().is_none_or(|extension| extension != "gz") {
        return Ok(fs::read_to_string(path)?);
    }
    let mut text = String::new();
    GzDecoder::new(File::open(path)?).take(MAX_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

pub fn parse<T: DeserializeOwned>(text: &str) -> Result<Vec<T>> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut values = Vec::new();
    for (index, line) in whole.lines().enumerate() {
        if line.is_empty() {
            bail!("line {} is empty", index + 1);
        }
        values.push(serde_json::from_str(line).with_context(|| format!("line {}: `{line}`", index + 1))?);
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unfinished_last_line_is_left_out_and_a_broken_one_is_an_error() {
        assert_eq!(parse::<u32>("1\n2\n3").unwrap(), [1, 2]);
        assert_eq!(parse::<u32>("").unwrap(), [] as [u32; 0]);
        let error = parse::<u32>("1\nx\n3\n").unwrap_err();
        assert!(format!("{error:#}").contains("line 2"), "{error:#}");
    }
}
