//! Ranks that are Python programs and train: `tests/e2e/tests/dump_python/train.py`. One of them stays away.

use std::{
    fs::File,
    io,
    path::Path,
    process::{Child, Command, Stdio},
};

pub const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../e2e/tests/dump_python/train.py");
/// The rank that stays away.
pub const ABSENT: u32 = 1;

/// Starts a rank. `command`: what runs the script, a Python at its end; what it says goes to `RANK.err` in the folder.
///
/// # Errors
/// If it cannot be started.
pub fn start_rank(
    mut command: Command,
    [bed, nccl, nvml]: [&Path; 3],
    folder: &Path,
    (rank, ranks): (u32, u32),
    more: &[&str],
) -> io::Result<Child> {
    command.args(["-I", SCRIPT]).args([bed, nccl, nvml, folder]);
    command.args([rank, ranks, ABSENT].map(|number| number.to_string())).args(more);
    command.stdin(Stdio::piped()).stderr(File::create(folder.join(format!("{rank}.err")))?).spawn()
}
