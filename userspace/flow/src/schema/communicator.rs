//! Ranks of communicators.

/// A rank of a communicator in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RankKey {
    /// `commHash`; before 2.18 there is none.
    pub hash: Option<u64>,
    /// 0, or the number of communicators with the same hash and rank that were seen before this one.
    pub instance: u32,
    pub rank: i32,
    /// In ncclflow's own PID namespace.
    pub pid: u32,
}

impl RankKey {
    /// The communicator as the folders of a recording are called.
    pub fn comm_name(&self) -> String {
        let hash = comm_hash_name(self.hash);
        if self.instance == 0 { hash } else { format!("{hash}-{}", self.instance) }
    }
}

/// `commHash` as text; before 2.18 there is none.
pub fn comm_hash_name(hash: Option<u64>) -> String {
    hash.map_or_else(|| "no-hash".to_owned(), |hash| format!("0x{hash:016x}"))
}

row! {
    /// A rank of a communicator that was seen, and the lines that were written for it.
    pub struct CommunicatorReport {
        /// `commHash`.
        "commHash": Identity, comm_hash: String;
        /// Its folder: `commHash`, and a number if there are several of that hash.
        "folder": Identity, folder: String;
        /// This rank.
        "rank": Identity, rank: i32;
        /// Size of the communicator.
        "nRanks": Identity, n_ranks: i32;
        /// Its process, as ncclflow sees it.
        "pid": Identity, pid: u32;
        /// Lines of `proxy_flow`: ops times channels.
        "proxyFlowLines": Measured, proxy_flow_lines: u64;
        /// Lines of `flow_steps`: messages.
        "flowStepsLines": Measured, flow_steps_lines: u64;
        /// Lines of `api`: calls.
        "apiLines": Measured, #[serde(default)] api_lines: u64;
        /// Lines that could not be written.
        "lostLines": Measured, lost_lines: u64;
    }
}
