//! A frame of a Python stack, as reports have it.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PythonFrame {
    pub function: String,
    /// Qualified name: Python 3.11 and later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qualname: Option<String>,
    /// File as Python was given it, often relative to the folder in which it was started.
    pub file: String,
    /// Line; null: the code has no line there.
    pub line: Option<u32>,
}

impl PythonFrame {
    /// Returns the line, or `?`.
    pub fn line_text(&self) -> String {
        self.line.map_or_else(|| "?".to_owned(), |line| line.to_string())
    }

    /// Writes the place: `train.py:41`.
    pub fn place(&self) -> String {
        format!("{}:{}", self.file.rsplit('/').next().unwrap_or(&self.file), self.line_text())
    }

    /// Writes a frame: `train.py:41 in load_batch`.
    pub fn shown(&self) -> String {
        format!("{} in {}", self.place(), self.function)
    }

    /// Tells whether the code was installed by somebody, and is not the user's own.
    pub fn is_of_a_library(&self) -> bool {
        is_of_a_library(&self.file)
    }
}

/// Tells whether code in this file was installed by somebody, and is not the user's own.
pub fn is_of_a_library(file: &str) -> bool {
    const FOLDERS: [&str; 3] = ["/site-packages/", "/dist-packages/", "/lib/python3."];
    file.starts_with('<') || FOLDERS.iter().any(|folder| file.contains(folder))
}
