//! Versions of torch.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Unknown;

/// A version of torch, as far as layouts depend on it: patch releases have not changed them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version {
    pub major: u8,
    pub minor: u8,
}

impl Version {
    pub const fn new(major: u8, minor: u8) -> Self {
        Self { major, minor }
    }

    /// Takes the version from a release's name: `2.11.0+cu130`, `2.4.1`, `2.12.0a0+git0123abc`.
    pub fn from_release(release: &str) -> Option<Self> {
        let mut parts = release.split('.');
        let number = |part: &str| {
            let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| part.parse().ok()).flatten()
        };
        Some(Self { major: number(parts.next()?)?, minor: number(parts.next()?)? })
    }

    /// Makes the reason why a version is not understood.
    pub fn unknown(version: Option<Self>) -> Unknown {
        let layouts = |version: Self| {
            let version = version.to_string();
            Unknown::Version { of: "torch", version, known: "2.4 to 2.15" }
        };
        version.map_or(Unknown::NoVersion("torch"), layouts)
    }
}

/// Writes `2.11`.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Returns the release that `torch/version.py` states: `__version__ = '2.11.0+cu130'`. At most 64 characters,
/// and only those that a release's name can have.
pub fn release_of(version_py: &str) -> Option<String> {
    let line = version_py
        .lines()
        .find_map(|line| line.strip_prefix("__version__")?.trim_start().strip_prefix('='))?;
    let release = line.trim().trim_matches(['\'', '"']);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '-' | '_');
    (!release.is_empty() && release.len() <= 64 && release.chars().all(is_plain)).then(|| release.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_from_the_file_beside_the_libraries() {
        let text = "from typing import Optional\n\n__all__ = ['__version__']\n__version__ = '2.11.0+cu130'\ndebug = False\n";
        assert_eq!(release_of(text).as_deref(), Some("2.11.0+cu130"));
        assert_eq!(release_of("__version__ = \"2.4.1\"").as_deref(), Some("2.4.1"));
        for wrong in ["", "__version__", "__version__ = ''", "__version__ = 'a\u{1b}[2J'", "version = '2.4'"]
        {
            assert_eq!(release_of(wrong), None, "{wrong:?}");
        }
        assert_eq!(release_of(&format!("__version__ = '{}'", "1".repeat(65))), None);
    }

    #[test]
    fn layouts_go_by_major_and_minor_number() {
        for (release, version) in [
            ("2.11.0+cu130", Some(Version::new(2, 11))),
            ("2.4.1", Some(Version::new(2, 4))),
            ("2.12.0a0+git0123abc", Some(Version::new(2, 12))),
            ("2", None),
            ("2.", None),
            ("2.x", None),
            ("a.1", None),
            ("2.999", None),
            ("2.+1", None),
        ] {
            assert_eq!(Version::from_release(release), version, "{release}");
        }
        assert_eq!(Version::new(2, 11).to_string(), "2.11");
    }
}
