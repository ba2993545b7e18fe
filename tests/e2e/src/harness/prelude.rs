//! What most of the end-to-end tests name.

pub use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

pub use rustix::process::Signal;
pub use serde_json::{Value, json};
pub use test_support::{eventually, is_long, need, root, wait_until};

pub use super::{
    bed::Bed,
    exported,
    node::{Killed, pid_list},
    programs, progress,
    ran::{Ran, ncclflow, ncclflow_of, run},
    recorder::Recorder,
    rows::{
        are_traced, assert_no_loss, lines, list, number, read_json, read_lines, session, session_so_far, sum,
        target, text,
    },
    world::{CALL_LOG, DEBUG_LOG, PLUGIN_LOG, TRANSFER_LOG, World},
};
