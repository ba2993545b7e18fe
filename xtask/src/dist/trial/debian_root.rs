//! A clean Debian in a folder, in which the Debian package is installed as its users do.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{programs, retried::retried, tool};

/// Debian 11, which has the oldest glibc of the systems in use (2.31), and Debian 12.
pub(super) const SUITES: [&str; 2] = ["bullseye", "bookworm"];

/// Script that runs a command in the folder. The mounts are in a namespace of the command's own: nothing has
/// to be undone.
const ENTER: &str = "mount -t proc proc \"$0/proc\" && mount -t sysfs sysfs \"$0/sys\" && \
                     mount --bind /dev \"$0/dev\" && exec chroot \"$0\" \"$@\"";

const NVML: &str = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1";
const GPU_STATES: &str = "gpu-states";

/// A Debian in a folder, by its path.
#[derive(Debug)]
pub(super) struct DebianRoot {
    path: PathBuf,
}

impl DebianRoot {
    /// Copies the suite, which is fetched once and kept in cargo's target folder.
    pub(super) fn make(suite: &str, path: &Path) -> Result<Self> {
        let kept = programs::target_folder()?.join(format!("debian-{suite}"));
        if !kept.exists() {
            eprintln!("fetching Debian's {suite} into {}", kept.display());
            let part = kept.with_extension("part");
            retried(|| {
                let _ = fs::remove_dir_all(&part);
                let mut debootstrap = Command::new("debootstrap");
                debootstrap.arg("--variant=minbase").arg(suite).arg(&part);
                tool::output(&mut debootstrap).map(drop)
            })?;
            fs::rename(&part, &kept).context("naming the fetched Debian")?;
        }
        let mut copy = Command::new("cp");
        copy.args(["--archive", "--reflink=auto", "--no-target-directory"]).arg(&kept).arg(path);
        tool::run(&mut copy, "a clean Debian")?;
        Ok(Self { path: path.to_owned() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the NVML double where a driver's package has NVML, and the states of the GPUs beside it.
    pub(super) fn add_nvml(&self, double: &Path, gpu_states: &Path) -> Result<()> {
        fs::copy(double, self.path.join(NVML)).context("installing the NVML double")?;
        fs::hard_link(gpu_states, self.path.join(GPU_STATES)).context("linking what GPUs do")
    }

    /// Returns the variables with which a program in the folder asks the NVML double. The library itself is
    /// found as any is.
    pub(super) fn nvml_variables() -> Vec<(OsString, OsString)> {
        vec![("NVML_DOUBLE_STATES".into(), format!("/{GPU_STATES}").into())]
    }

    /// Returns the words before a command that is run in the folder.
    pub(super) fn enter(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = ["unshare", "--mount", "sh", "-c", ENTER].map(OsString::from).into();
        words.push(self.path.clone().into());
        words
    }

    fn command(&self, program: &str) -> Command {
        let words = self.enter();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(program);
        command
    }

    pub(super) fn install(&self, package: &Path) -> Result<()> {
        let name = package.file_name().unwrap_or_default();
        fs::copy(package, self.path.join(name)).context("copying the package")?;
        let install = ["--install", "--force-confold"];
        tool::run(
            self.command("dpkg").args(install).arg(Path::new("/").join(name)),
            "installing the package",
        )?;
        tool::run(self.command("dpkg").args(["--verify", "ncclflow"]), "verifying what was installed")
    }

    /// Removes the package, and checks that only its recordings are left.
    pub(super) fn purge(&self) -> Result<()> {
        let listed = tool::output(self.command("dpkg").args(["--listfiles", "ncclflow"]))?;
        tool::run(self.command("dpkg").args(["--purge", "ncclflow"]), "removing the package")?;
        let listed = String::from_utf8_lossy(&listed);
        let paths = listed.lines().map(|path| self.path.join(path.trim_start_matches('/')));
        let left: Vec<PathBuf> = paths.filter(|path| path.is_file()).collect();
        if !left.is_empty() || !self.path.join("var/lib/ncclflow").exists() {
            bail!("after the package was purged, these are left, or its recordings are not: {left:?}");
        }
        Ok(())
    }
}
