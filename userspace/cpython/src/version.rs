//! Versions of CPython.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Unknown;

/// A version of CPython, as far as layouts depend on it: patch releases do not change them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version {
    pub major: u8,
    pub minor: u8,
    /// True for a build without the GIL (3.13 and later, PEP 703), whose objects have another header.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub free_threaded: bool,
}

impl Version {
    pub const fn new(major: u8, minor: u8) -> Self {
        Self { major, minor, free_threaded: false }
    }

    /// Takes the version from `PY_VERSION_HEX`, which is also the value of `Py_Version`: 0x030b07f0 is 3.11.7
    /// (Include/patchlevel.h).
    pub fn from_hex(hex: u64) -> Option<Self> {
        let hex = u32::try_from(hex).ok()?;
        let [major, minor, _, _] = hex.to_be_bytes();
        (major == 3).then_some(Self::new(major, minor))
    }

    /// Takes the version from the name of a library or program: `libpython3.11.so.1.0`, `python3.8`,
    /// `libpython3.13t.so.1.0`.
    pub fn from_file_name(name: &str) -> Option<Self> {
        let rest = name.strip_prefix("lib").unwrap_or(name).strip_prefix("python")?;
        let (major, rest) = rest.split_once('.')?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (minor, rest) = rest.split_at_checked(digits)?;
        let version = Self::new(major.parse().ok()?, minor.parse().ok()?);
        let free_threaded = rest.starts_with('t');
        (version.major == 3).then_some(Self { free_threaded, ..version })
    }

    /// Makes the reason why a version is not understood.
    pub fn unknown(version: Option<Self>) -> Unknown {
        let layouts = |version: Self| {
            let version = version.to_string();
            Unknown::Version { of: "Python", version, known: "3.8 to 3.15" }
        };
        version.map_or(Unknown::NoVersion("Python"), layouts)
    }

    /// Tells whether the version is at least this one.
    pub const fn since(self, major: u8, minor: u8) -> bool {
        self.major > major || (self.major == major && self.minor >= minor)
    }
}

/// Writes `3.11` or `3.13t`.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free_threaded = if self.free_threaded { "t" } else { "" };
        write!(f, "{}.{}{free_threaded}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_names_and_from_cpythons_number() {
        let named = |name| Version::from_file_name(name).map(|version| version.to_string());
        for (name, version) in [
            ("libpython3.11.so.1.0", "3.11"),
            ("libpython3.8.so", "3.8"),
            ("python3.12", "3.12"),
            ("python3.13t", "3.13t"),
            ("libpython3.14t.so.1.0", "3.14t"),
            ("libpython3.7m.so.1.0", "3.7"),
        ] {
            assert_eq!(named(name).as_deref(), Some(version), "{name}");
        }
        for name in
            ["python3", "libpython3.so", "libpython2.7.so.1.0", "pythonx.y", "ipython3.8", "", "python3.999"]
        {
            assert_eq!(named(name), None, "{name}");
        }
        assert_eq!(Version::from_hex(0x030b_07f0), Some(Version::new(3, 11)));
        assert_eq!(Version::from_hex(0x0207_12f0), None);
        assert_eq!(Version::from_hex(0x0a_030b_07f0), None);
    }
}
