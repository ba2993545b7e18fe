//! Ports of network adapters for RDMA, as the kernel tells their state. A driver that asks its adapter may not
//! answer, so a thread reads them, which can be lost; nobody waits for it.

use std::{
    fs, io,
    path::Path,
    sync::mpsc::{self, Receiver, SyncSender},
    thread,
    time::{Duration, Instant},
};

use inspect::{privileges, process::read_text};
use rustix::thread::CapabilitySet;

use crate::reading::PortState;

/// Adapters of the kernel (Documentation/ABI/stable/sysfs-class-infiniband).
const ADAPTERS: &str = "/sys/class/infiniband";
/// Time between two readings.
const PERIOD: Duration = Duration::from_secs(2);
/// Time without a reading after which the thread is said to be lost.
const PATIENCE: Duration = Duration::from_secs(15);
/// Most adapters, and most ports of one.
const MAX_ADAPTERS: usize = 256;
const MAX_PORTS: usize = 16;

#[derive(Debug)]
pub(crate) struct Ports {
    readings: Receiver<Vec<PortState>>,
    latest: Option<Vec<PortState>>,
    at: Instant,
}

impl Ports {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start() -> io::Result<Self> {
        let (tell, readings) = mpsc::sync_channel(1);
        thread::Builder::new().name("ncclflow-ports".to_owned()).spawn(move || {
            privileges::keep_only(CapabilitySet::empty());
            read_on(Path::new(ADAPTERS), &tell);
        })?;
        Ok(Self { readings, latest: None, at: Instant::now() })
    }

    /// Returns the latest reading. `None`: there is none, or none for long.
    pub(crate) fn latest(&mut self) -> Option<Vec<PortState>> {
        while let Ok(reading) = self.readings.try_recv() {
            (self.latest, self.at) = (Some(reading), Instant::now());
        }
        self.latest.clone().filter(|_| !self.is_lost())
    }

    /// Tells whether the thread has not answered for long.
    pub(crate) fn is_lost(&self) -> bool {
        self.at.elapsed() > PATIENCE
    }
}

/// Reads on until nobody listens.
fn read_on(adapters: &Path, tell: &SyncSender<Vec<PortState>>) {
    while tell.send(read(adapters)).is_ok() {
        thread::sleep(PERIOD);
    }
}

/// Reads the state of all ports. A host without adapters has none.
fn read(adapters: &Path) -> Vec<PortState> {
    let names = |folder: &Path, most: usize| -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).take(most).collect();
        names.sort();
        names
    };
    let mut found = Vec::new();
    for adapter in names(adapters, MAX_ADAPTERS) {
        let ports = adapters.join(&adapter).join("ports");
        for port in names(&ports, MAX_PORTS) {
            // `4: ACTIVE`
            let text = read_text(ports.join(&port).join("state")).unwrap_or_default();
            if let Some((_, state)) = text.trim().split_once(": ") {
                found.push(PortState { name: format!("{adapter}:{port}"), state: state.to_owned() });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of Linux 6.8 with ConnectX-7.
    #[test]
    fn states_of_all_ports_are_read_and_what_is_none_is_left_out() {
        let root = tempfile::tempdir().unwrap();
        let make = |port: &str, state: &str| {
            let folder = root.path().join(port);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("state"), state).unwrap();
        };
        make("mlx5_1/ports/1", "1: DOWN\n");
        make("mlx5_0/ports/1", "4: ACTIVE\n");
        make("mlx5_0/ports/2", "nonsense\n");
        let port = |name: &str, state: &str| PortState { name: name.to_owned(), state: state.to_owned() };
        assert_eq!(read(root.path()), [port("mlx5_0:1", "ACTIVE"), port("mlx5_1:1", "DOWN")]);
        assert_eq!(read(Path::new("/nonexistent")), []);
    }
}
