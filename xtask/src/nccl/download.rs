//! The download of a wheel, by pip.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, io, thread};

use anyhow::{Context, Result, anyhow, bail};

use super::progress::Progress;
use crate::retried::retried;
use crate::tool::say;

/// Tags of NVIDIA's wheels before the processor: pip needs the exact one.
const PLATFORMS: [&str; 9] = [
    "manylinux1",
    "manylinux2010",
    "manylinux2014",
    "manylinux_2_17",
    "manylinux_2_18",
    "manylinux_2_24",
    "manylinux_2_27",
    "manylinux_2_28",
    "manylinux_2_31",
];

/// Returns the command for pip on this machine.
pub(crate) fn pip() -> Result<Vec<&'static str>> {
    let ways: [&[&str]; 4] = [&["pip"], &["pip3"], &["python3", "-m", "pip"], &["python", "-m", "pip"]];
    for way in ways {
        let version = Command::new(way[0]).args(&way[1..]).arg("--version").stdin(Stdio::null()).output();
        if version.is_ok_and(|output| output.status.success()) {
            return Ok(way.to_vec());
        }
    }
    bail!("pip was not found: install it (Debian: python3-pip), it downloads NVIDIA's wheels")
}

/// Downloads the wheel for a processor into `place`.
pub(super) fn download(requirement: &str, machine: &str, place: &Path) -> Result<PathBuf> {
    fs::create_dir_all(place)?;
    let pip = pip()?;
    // The outer error is of a kind that another try may mend.
    retried(|| {
        let Some(said) = run_pip(&pip, requirement, machine, place)? else { return Ok(Ok(())) };
        let error = anyhow!(explain(requirement, machine, &said));
        if is_final(&said) { Ok(Err(error)) } else { Err(error) }
    })??;
    let wheel = fs::read_dir(place)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheel.ok_or_else(|| anyhow!("pip left no wheel in `{}`", place.display()))
}

/// Runs pip. Returns its messages if it fails.
fn run_pip(pip: &[&str], requirement: &str, machine: &str, place: &Path) -> Result<Option<String>> {
    let mut command = Command::new(pip[0]);
    command.args(&pip[1..]).args(["download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]);
    command.args(["--disable-pip-version-check", "--progress-bar", "off"]);
    for platform in PLATFORMS {
        command.args(["--platform", &format!("{platform}_{machine}")]);
    }
    command.arg("--dest").arg(place).arg(requirement);
    // pip writes to a temporary directory first; there the progress can be seen, and the file system is the
    // cache's.
    command.env("TMPDIR", place).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    say(&format!("{} download {requirement}", pip.join(" ")));
    let mut child = command.spawn().context("starting pip")?;
    let errors = child.stderr.take().map(|stderr| thread::spawn(move || io::read_to_string(stderr)));
    let output = child.stdout.take().map(|stdout| thread::spawn(move || io::read_to_string(stdout)));
    let mut progress = Progress::unbounded(&format!("downloading {requirement}"));
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        progress.set(bytes_below(place, 8));
        thread::sleep(Duration::from_millis(100));
    };
    progress.finish();
    if let Some(output) = output {
        // Read to the end so that pip never blocks. The output is used only if pip fails.
        let _words = output.join();
    }
    let said = errors.and_then(|errors| errors.join().ok()?.ok()).unwrap_or_default();
    Ok((!status.success()).then_some(said))
}

/// Tells whether another try is of no use. pip says "No matching distribution" also of an index that it
/// cannot reach, but then with "from versions: none".
fn is_final(said: &str) -> bool {
    let is_missing = said.contains("No matching distribution") && !said.contains("from versions: none");
    is_missing || said.contains("No space left")
}

fn explain(requirement: &str, machine: &str, said: &str) -> String {
    let tail: Vec<&str> = said.lines().rev().filter(|line| !line.trim().is_empty()).take(3).collect();
    let tail: Vec<&str> = tail.into_iter().rev().collect();
    let tail = tail.join("\n  ");
    if said.contains("No matching distribution") {
        format!("there is no {requirement} for {machine} in pip's index\n  {tail}")
    } else if said.contains("No space left") {
        format!(
            "the disk is full; the download of {requirement} needs some 400 MB, the library as much\n  {tail}"
        )
    } else {
        format!("pip could not download {requirement}\n  {tail}")
    }
}

/// Sums the bytes of all files below a directory.
fn bytes_below(directory: &Path, depth: u32) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() && depth > 0 => bytes_below(&entry.path(), depth - 1),
            Ok(metadata) if metadata.is_file() => metadata.len(),
            _ => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::{explain, is_final};

    #[test]
    fn pips_words_are_explained() {
        let said = "ERROR: Could not find a version\nERROR: No matching distribution found for x\n";
        assert!(explain("x==1", "x86_64", said).starts_with("there is no x==1"));
        assert!(
            explain("x==1", "x86_64", "OSError: [Errno 28] No space left on device")
                .starts_with("the disk is full")
        );
    }

    #[test]
    fn what_the_network_disturbed_is_tried_again() {
        let said = |versions: &str| {
            format!(
                "ERROR: Could not find a version that satisfies the requirement x==1 (from versions: {versions})\n\
                 ERROR: No matching distribution found for x==1\n"
            )
        };
        assert!(is_final(&said("2.18.1, 2.19.3")) && !is_final(&said("none")));
        assert!(is_final("OSError: [Errno 28] No space left on device"));
        assert!(!is_final("ReadTimeoutError: Read timed out."));
    }
}
