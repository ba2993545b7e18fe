//! Tries the container image: builds it with buildah, without a registry and without a daemon, and runs the
//! program in it.

use std::{
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::{debian_root::DebianRoot, jobs::Jobs, short_list::Place};
use crate::{prerequisites, tool};

const BASE: &str = "localhost/ncclflow-base";
const IMAGE: &str = "localhost/ncclflow";

/// Capabilities that docs/INSTALL.md gives the container. With this isolation it is in the host's PID
/// namespace by itself.
const CAPABILITIES: &str = "CAP_BPF,CAP_PERFMON,CAP_SYS_ADMIN,CAP_SYS_PTRACE,CAP_DAC_READ_SEARCH";

/// Number of times that a command is tried: on a busy machine buildah now and then passes on only the
/// beginning of what a program prints.
const ATTEMPTS: u32 = 3;

/// Builds the image of the tree on a Debian, and tries the program in it.
pub(super) fn run(tree: &Path, base: &DebianRoot, scratch: &Path, jobs: &Jobs) -> Result<()> {
    let image = Image::build(tree, base.path(), scratch)?;
    let tried = Place::new("image", image.enter(), Vec::new()).with_attempts(ATTEMPTS).brief(jobs);
    image.remove()?;
    tried
}

/// A built image, and a container of it.
#[derive(Debug)]
struct Image {
    storage: PathBuf,
    container: String,
}

impl Image {
    fn build(tree: &Path, base: &Path, scratch: &Path) -> Result<Self> {
        prerequisites::debian_packages(&[(&["buildah", "--version"], "buildah")])?;
        let mut image = Self { storage: scratch.join("storage"), container: String::new() };
        image.import(base)?;
        let mut build = image.buildah("build");
        build.args([
            "--quiet",
            "--pull-never",
            "--build-arg",
            &format!("BASE={BASE}"),
            "--tag",
            IMAGE,
            "--file",
        ]);
        tool::output(build.arg(tree.join("dist/Containerfile")).arg(tree)).context("building the image")?;
        let mut from = image.buildah("from");
        image.container =
            text(from.args(["--pull-never", "--cap-drop", "all", "--cap-add", CAPABILITIES, IMAGE]))?;
        image.check_entry()?;
        Ok(image)
    }

    fn import(&self, base: &Path) -> Result<()> {
        let container = text(self.buildah("from").arg("scratch"))?;
        tool::output(self.buildah("add").args(["--quiet", &container]).arg(base).arg("/"))
            .with_context(|| format!("making an image of `{}`", base.display()))?;
        tool::output(self.buildah("commit").args(["--quiet", "--rm", &container, BASE]))?;
        Ok(())
    }

    /// Checks the entry point, which `docker run` starts and buildah does not: it must be the command that is
    /// started here.
    fn check_entry(&self) -> Result<()> {
        let format = "{{.OCIv1.Config.Entrypoint}} {{.OCIv1.Config.Cmd}}";
        let entry = text(self.buildah("inspect").args(["--type", "image", "--format", format, IMAGE]))?;
        if entry != "[/usr/bin/ncclflow] [doctor]" {
            bail!("the image starts `{entry}`");
        }
        Ok(())
    }

    /// Returns the words before a command that is run in the container.
    fn enter(&self) -> Vec<OsString> {
        let mut run = self.buildah("run");
        run.args(["--isolation", "chroot"]);
        for (name, value) in DebianRoot::nvml_variables() {
            run.arg("--env").arg(format!("{}={}", name.display(), value.display()));
        }
        run.args([&self.container, "--"]);
        [run.get_program()].into_iter().chain(run.get_args()).map(OsStr::to_owned).collect()
    }

    /// Removes the image, its base and everything that buildah has stored.
    pub(super) fn remove(self) -> Result<()> {
        tool::output(self.buildah("rm").arg("--all"))?;
        tool::output(self.buildah("rmi").args(["--all", "--force"]))?;
        let context = || format!("removing `{}`", self.storage.display());
        fs::remove_dir_all(&self.storage).with_context(context)
    }

    fn buildah(&self, command: &str) -> Command {
        let mut buildah = Command::new("buildah");
        // Neither needs more of the kernel than chroot(2), so that it works in a container, too.
        buildah.args(["--storage-driver", "vfs"]).env("BUILDAH_ISOLATION", "chroot");
        buildah.arg("--root").arg(self.storage.join("root"));
        buildah.arg("--runroot").arg(self.storage.join("run")).arg(command);
        buildah
    }
}

/// Returns the output of a command, without the end of the line.
fn text(command: &mut Command) -> Result<String> {
    let output = tool::output(command)?;
    Ok(String::from_utf8_lossy(&output).trim_end().to_owned())
}
