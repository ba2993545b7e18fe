//! The test bed's account: what its device emulator put into and took out of the slots.
//!
//! A line per kernel launch, operation, channel, peer and direction, in `FILE.rank<r>`; written when a kernel
//! has ended, so what hung is not in it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::communicator::{CommHash, Member};
use crate::direction::Direction;
use crate::json_lines;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Transfer {
    pub comm_hash: CommHash,
    pub rank: i32,
    /// Number of the kernel launch on this communicator and rank.
    pub launch: u64,
    /// Number of the operation in the launch.
    pub op: u64,
    pub func: String,
    pub algo: String,
    /// LL, LL128 or SIMPLE.
    pub proto: String,
    pub channel: u32,
    pub peer: i32,
    pub direction: Direction,
    pub conn_index: u32,
    pub messages: u64,
    /// Payload.
    pub bytes: u64,
    /// What it takes in the slots, with the flags of LL and LL128.
    pub wire_bytes: u64,
    /// Payload of each message; left out where there are too many.
    pub sizes: Option<Vec<u64>>,
}

impl Transfer {
    /// Sends and receives, as against collectives.
    pub fn is_p2p(&self) -> bool {
        matches!(self.func.as_str(), "SendRecv" | "Send" | "Recv")
    }

    /// The messages as they lie in the slots.
    pub fn wire_sizes(&self) -> Option<Vec<u64>> {
        let sizes = self.sizes.as_ref()?.iter();
        match self.proto.as_str() {
            "SIMPLE" => Some(sizes.copied().collect()),
            // Eight bytes of data and eight of flags make a line.
            "LL" => Some(sizes.map(|payload| payload.div_ceil(8) * 16).collect()),
            _ => None,
        }
    }
}

#[derive(Debug, Default)]
pub struct TransferLog {
    /// In the order of launches and operations.
    pub ranks: BTreeMap<Member, Vec<Transfer>>,
}

impl TransferLog {
    /// Reads `FILE.rank0`, `FILE.rank1` … of `n_ranks` ranks.
    pub fn read(file: &Path, n_ranks: u32) -> Result<Self> {
        let mut log = Self::default();
        for rank in 0..n_ranks {
            let mut path = file.as_os_str().to_owned();
            path.push(format!(".rank{rank}"));
            let path = Path::new(&path);
            log.take(json_lines::read(path)?).with_context(|| format!("reading `{}`", path.display()))?;
        }
        Ok(log)
    }

    pub fn parse(text: &str) -> Result<Self> {
        let mut log = Self::default();
        log.take(json_lines::parse(text)?)?;
        Ok(log)
    }

    fn take(&mut self, transfers: Vec<Transfer>) -> Result<()> {
        for transfer in transfers {
            if let Some(sizes) = &transfer.sizes
                && (sizes.len() as u64, sizes.iter().sum::<u64>()) != (transfer.messages, transfer.bytes)
            {
                bail!("sizes that do not add up: {transfer:?}");
            }
            let member = Member { comm_hash: transfer.comm_hash, rank: transfer.rank };
            self.ranks.entry(member).or_default().push(transfer);
        }
        for transfers in self.ranks.values_mut() {
            transfers.sort_by_key(|transfer| (transfer.launch, transfer.op));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"commHash":"0xabc","rank":1,"launch":0,"op":0,"func":"AllReduce","algo":"RING","proto":"LL","channel":0,"peer":0,"direction":"send","connIndex":0,"messages":2,"bytes":20,"wireBytes":48,"sizes":[12,8]}"#;

    #[test]
    fn a_line_is_read_and_its_sizes_are_turned_into_slot_bytes() {
        let log = TransferLog::parse(&format!("{LINE}\n")).unwrap();
        let transfer = &log.ranks[&Member { comm_hash: CommHash(0xabc), rank: 1 }][0];
        assert_eq!((transfer.direction, transfer.is_p2p()), (Direction::Send, false));
        assert_eq!(transfer.wire_sizes(), Some(vec![32, 16]));
        assert_eq!(transfer.wire_sizes().unwrap().iter().sum::<u64>(), transfer.wire_bytes);
    }

    #[test]
    fn sizes_that_do_not_add_up_are_an_error() {
        assert!(TransferLog::parse(&format!("{}\n", LINE.replace("\"bytes\":20", "\"bytes\":21"))).is_err());
        assert!(
            TransferLog::parse(&format!("{}\n", LINE.replace("\"messages\":2", "\"messages\":3"))).is_err()
        );
    }
}
