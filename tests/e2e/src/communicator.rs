//! The name of a communicator, and of one rank in it.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// `ncclComm.commHash`: the same number on every rank.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommHash(pub u64);

impl fmt::Display for CommHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#x}", self.0)
    }
}

impl fmt::Debug for CommHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl FromStr for CommHash {
    type Err = std::num::ParseIntError;

    /// Hexadecimal, with or without `0x`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).map(Self)
    }
}

impl<'de> Deserialize<'de> for CommHash {
    /// A number, or a string of hexadecimal digits.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = CommHash;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a communicator hash: a number, or hexadecimal digits")
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<CommHash, E> {
                Ok(CommHash(value))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<CommHash, E> {
                value.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// One rank of one communicator, the key by which files of different witnesses meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    pub comm_hash: CommHash,
    pub rank: i32,
}

impl fmt::Display for Member {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "comm {} rank {}", self.comm_hash, self.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_from_digits_and_from_numbers() {
        assert_eq!("0x1f".parse(), Ok(CommHash(31)));
        assert_eq!("00000000000000ff".parse(), Ok(CommHash(255)));
        assert_eq!(serde_json::from_str::<CommHash>("\"ff\"").unwrap(), CommHash(255));
        assert_eq!(serde_json::from_str::<CommHash>("18446744073709551615").unwrap(), CommHash(u64::MAX));
        assert!(serde_json::from_str::<CommHash>("\"xyz\"").is_err());
    }
}
