//! What ncclflow wrote of API calls: `DIR/<commHash>/api_rank<r>.jsonl` and
//! `DIR/processes/api_<host>_<pid>.jsonl`.
//!
//! Declared from the format's description, not from the writer's types.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Deserializer};

use crate::json_lines;

/// A call of the API.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApiLine {
    pub op_count: Option<u64>,
    pub rank: Option<i32>,
    pub function: String,
    pub count: u64,
    pub bytes: Option<u64>,
    pub datatype: Option<String>,
    pub redop: Option<String>,
    pub redop_handle: Option<i32>,
    pub root: Option<i32>,
    pub peer: Option<i32>,
    #[serde(deserialize_with = "nullable_pointer")]
    pub sendbuff: Option<u64>,
    #[serde(deserialize_with = "nullable_pointer")]
    pub recvbuff: Option<u64>,
    #[serde(deserialize_with = "pointer")]
    pub stream: u64,
    #[serde(deserialize_with = "pointer")]
    pub comm: u64,
    pub comm_hash: Option<String>,
    pub n_ranks: Option<i32>,
    pub call: Option<u64>,
    pub launched: Option<u64>,
    #[serde(rename = "ts_ns")]
    pub ts_ns: u64,
    pub pid: u32,
    pub tid: u32,
    pub host: String,
    /// With `--returns`: the exported function that returned, after how long, and what.
    #[serde(default)]
    pub called: Option<String>,
    #[serde(default, rename = "host_ns")]
    pub host_ns: Option<u64>,
    #[serde(default)]
    pub result: Option<String>,
    /// With `--api`: its op.
    #[serde(default)]
    pub seq: Option<u64>,
    /// Recorded by the exported function's arguments.
    #[serde(default)]
    pub by_arguments: bool,
}

/// A call of an exported function that does not communicate.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OtherLine {
    /// As exported.
    pub function: String,
    pub ts_ns: u64,
    pub pid: u32,
    pub tid: u32,
    pub host: String,
    pub host_ns: Option<u64>,
    pub result: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ProcessLine {
    Call(Box<ApiLine>),
    Other(OtherLine),
}

fn pointer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    nullable_pointer(deserializer)?.ok_or_else(|| serde::de::Error::custom("no address"))
}

fn nullable_pointer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let parse = |text: String| u64::from_str_radix(text.strip_prefix("0x").unwrap_or("-"), 16);
    text.map(parse).transpose().map_err(serde::de::Error::custom)
}

/// The lines of one rank of one communicator.
#[derive(Debug, Clone)]
pub struct ApiRank {
    /// Name of the folder.
    pub folder: String,
    pub rank: i32,
    pub lines: Vec<ApiLine>,
}

/// A recording of the API level.
#[derive(Debug, Clone, Default)]
pub struct ApiTrace {
    pub ranks: Vec<ApiRank>,
    /// Lines of calls that belong to no communicator.
    pub processes: Vec<ApiLine>,
    pub others: Vec<OtherLine>,
}

impl ApiTrace {
    /// Reads every folder in `directory`.
    pub fn read(directory: &Path) -> Result<Self> {
        let mut trace = Self::default();
        for folder in fs::read_dir(directory).with_context(|| format!("listing `{}`", directory.display()))? {
            let folder = folder?.path();
            if !folder.is_dir() {
                continue;
            }
            let folder_name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if folder_name == "recording" {
                continue;
            }
            for entry in fs::read_dir(&folder).with_context(|| format!("listing `{}`", folder.display()))? {
                let path = entry?.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                if folder_name == "processes" {
                    for line in json_lines::read::<ProcessLine>(&path)? {
                        match line {
                            ProcessLine::Call(line) => trace.processes.push(*line),
                            ProcessLine::Other(line) => trace.others.push(line),
                        }
                    }
                    continue;
                }
                if name.starts_with("proxy_flow_rank") || name.starts_with("flow_") {
                    continue;
                }
                let rank = name.strip_prefix("api_rank");
                let rank = rank.map(|rest| rest.strip_suffix(".gz").unwrap_or(rest));
                let rank = rank.and_then(|rest| rest.strip_suffix(".jsonl"));
                let Some(rank) = rank.and_then(|rank| rank.parse().ok()) else {
                    bail!("`{}` is no file of API calls", path.display());
                };
                let lines: Vec<ApiLine> = json_lines::read(&path)?;
                trace.ranks.push(ApiRank { folder: folder_name.clone(), rank, lines });
            }
        }
        trace.ranks.sort_by_key(|rank| (rank.folder.clone(), rank.rank));
        Ok(trace)
    }
}
