//! Adapters for RDMA (InfiniBand, RoCE) and their ports, as the kernel tells of them
//! (Documentation/ABI/stable/sysfs-class-infiniband). A driver that asks its adapter may not answer: read in a
//! thread that can be lost.

use std::{collections::BTreeMap, fs, path::Path, thread, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{process::read_text, unresponsive::Answerer};

/// Adapters of the kernel.
pub const ADAPTERS: &str = "/sys/class/infiniband";
/// Most adapters, and most ports of one.
const MAX_ADAPTERS: usize = 256;
const MAX_PORTS: usize = 16;
/// State of a port that carries messages (include/rdma/ib_verbs.h, `IB_PORT_ACTIVE`), and of one that does
/// for now.
const UP: [&str; 2] = ["ACTIVE", "ACTIVE_DEFER"];

/// Counters of a port that grow when something is wrong, by folder: those that InfiniBand defines, and those of
/// the adapters' drivers (mlx5, bnxt_re, efa, irdma).
const ERRORS: [(&str, &[&str]); 2] = [
    (
        "counters",
        &[
            "link_downed",
            "link_error_recovery",
            "symbol_error",
            "local_link_integrity_errors",
            "excessive_buffer_overrun_errors",
            "port_rcv_errors",
            "port_xmit_discards",
        ],
    ),
    (
        "hw_counters",
        &[
            "local_ack_timeout_err",
            "out_of_sequence",
            "packet_seq_err",
            "rnr_nak_retry_err",
            "req_transport_retries_exceeded",
            "rx_drops",
        ],
    ),
];

/// A port of an adapter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// Name of the adapter: `mlx5_0`.
    pub adapter: String,
    pub port: u32,
    /// State: `ACTIVE`, `DOWN`, `INIT`, `ARMED`.
    pub state: String,
    /// Rate: `400 Gb/sec (4X NDR)`.
    pub rate: Option<String>,
    /// Counters of errors that are not 0, since the adapter was started.
    #[serde(default)]
    pub errors: BTreeMap<String, u64>,
    /// Counters of errors that grew between two readings, and by how much.
    #[serde(default)]
    pub errors_grown: BTreeMap<String, u64>,
    /// Number of all ports of one card, which is told instead of a name by NCCL's plugins; 0 if unknown.
    #[serde(skip)]
    pub system_guid: u64,
}

impl Port {
    /// Names the port as NCCL's log does: `mlx5_0:1`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.adapter, self.port)
    }

    pub fn is_up(&self) -> bool {
        UP.contains(&self.state.as_str())
    }

    fn grown_since(mut self, before: &[Self]) -> Self {
        let key = |port: &Self| (port.adapter.clone(), port.port);
        if let Some(before) = before.iter().find(|before| key(before) == key(&self)) {
            let growth = |(name, now): (&String, &u64)| {
                let grown = now.saturating_sub(before.errors.get(name).copied().unwrap_or(0));
                (grown > 0).then(|| (name.clone(), grown))
            };
            self.errors_grown = self.errors.iter().filter_map(growth).collect();
        }
        self
    }
}

/// Reads all ports. A host without adapters has none.
pub fn read(adapters: &Path, with_errors: bool) -> Vec<Port> {
    let mut found = Vec::new();
    for adapter in names(adapters, MAX_ADAPTERS) {
        let folder = adapters.join(&adapter);
        let system_guid = read_text(folder.join("sys_image_guid")).ok().and_then(|text| guid(&text));
        let ports = folder.join("ports");
        for number in names(&ports, MAX_PORTS) {
            let folder = ports.join(&number);
            let text = |name: &str| Some(read_text(folder.join(name)).ok()?.trim().to_owned());
            // `4: ACTIVE`
            let state = text("state").and_then(|text| Some(text.split_once(": ")?.1.to_owned()));
            let (Some(state), Ok(port)) = (state, number.parse()) else { continue };
            found.push(Port {
                adapter: adapter.clone(),
                port,
                state,
                rate: text("rate").filter(|_| with_errors),
                errors: if with_errors { errors(&folder) } else { BTreeMap::new() },
                errors_grown: BTreeMap::new(),
                system_guid: system_guid.unwrap_or(0),
            });
        }
    }
    found
}

fn names(folder: &Path, most: usize) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).take(most).collect();
    names.sort();
    names
}

/// Reads the counters of a port that are not 0.
fn errors(port: &Path) -> BTreeMap<String, u64> {
    let mut errors = BTreeMap::new();
    for (folder, names) in ERRORS {
        for name in names {
            let count = read_text(port.join(folder).join(name)).ok();
            let count: Option<u64> = count.and_then(|text| text.trim().parse().ok());
            errors.extend(count.filter(|count| *count > 0).map(|count| ((*name).to_owned(), count)));
        }
    }
    errors
}

/// Parses a GUID as sysfs writes it: `b8ce:f603:00ab:cdef`.
fn guid(text: &str) -> Option<u64> {
    let digits: String = text.trim().chars().filter(|character| *character != ':').collect();
    u64::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 16)
}

/// Reads the ports at the beginning and at the end of something, in a thread of its own.
#[derive(Debug)]
pub struct PortWatch {
    /// `None`: the thread could not be started.
    reader: Option<Answerer<(), Vec<Port>>>,
}

impl PortWatch {
    /// Starts the thread, and has it read once.
    pub fn start() -> Self {
        let builder = thread::Builder::new().name("ports".to_owned());
        let reader = Answerer::start(builder, || |()| read(Path::new(ADAPTERS), true)).ok();
        if let Some(reader) = &reader {
            reader.ask(());
        }
        Self { reader }
    }

    /// Returns the ports as they are now, with the errors that came meanwhile. `None`: the kernel does not
    /// answer within `patience`.
    pub fn finish(self, patience: Duration) -> Option<Vec<Port>> {
        let reader = self.reader?;
        reader.ask(());
        let before = reader.answer(patience)?;
        let now = reader.answer(patience)?;
        Some(now.into_iter().map(|port| port.grown_since(&before)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Texts of Linux 6.8 with ConnectX-7.
    #[test]
    fn states_and_errors_of_all_ports_are_read_and_what_is_none_is_left_out() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "mlx5_1/ports/1/state", "1: DOWN\n");
        write(root.path(), "mlx5_0/sys_image_guid", "b8ce:f603:00ab:cdef\n");
        write(root.path(), "mlx5_0/ports/1/state", "4: ACTIVE\n");
        write(root.path(), "mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
        write(root.path(), "mlx5_0/ports/1/counters/link_downed", "3\n");
        write(root.path(), "mlx5_0/ports/1/counters/symbol_error", "0\n");
        write(root.path(), "mlx5_0/ports/1/hw_counters/local_ack_timeout_err", "7\n");
        write(root.path(), "mlx5_0/ports/2/state", "nonsense\n");
        let before = read(root.path(), true);
        let [first, second] = &before[..] else { panic!("{before:?}") };
        assert_eq!((first.name().as_str(), first.is_up()), ("mlx5_0:1", true));
        assert_eq!(first.rate.as_deref(), Some("400 Gb/sec (4X NDR)"));
        assert_eq!(first.system_guid, 0xb8ce_f603_00ab_cdef);
        let errors = [("link_downed", 3), ("local_ack_timeout_err", 7)];
        assert_eq!(first.errors, errors.map(|(name, count)| (name.to_owned(), count)).into());
        assert_eq!((second.name().as_str(), second.is_up(), second.system_guid), ("mlx5_1:1", false, 0));
        write(root.path(), "mlx5_0/ports/1/hw_counters/local_ack_timeout_err", "9\n");
        let now = read(root.path(), true).remove(0).grown_since(&before);
        assert_eq!(now.errors_grown, [("local_ack_timeout_err".to_owned(), 2)].into());
        assert!(read(root.path(), false)[0].errors.is_empty());
        assert_eq!(read(Path::new("/nonexistent"), true), []);
    }
}
