//! Tries the files that were made: each program with the same short list, each package where a user installs
//! it. Jobs run on the real NCCL, without a GPU; the GPUs are those of the NVML double.

mod debian_root;
mod image;
mod jobs;
mod kubernetes;
mod rpm;
mod shells;
mod short_list;
mod systemd;
mod unit;
mod wheel;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use self::{
    debian_root::{DebianRoot, SUITES},
    jobs::Jobs,
    short_list::Place,
    unit::Unit,
};
use super::{Made, program};
use crate::{nccl, prerequisites, programs, root, tool};

/// NCCL version of the jobs.
const NCCL: &str = "2.27.5";

/// Everything that a trial needs, built and fetched before, as a user may do that.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Trial {
    made: Vec<Made>,
    /// Folder of the bed.
    programs: PathBuf,
    nccl: PathBuf,
    /// NVML double, for the glibc of the packaged program.
    double: PathBuf,
    scratch: PathBuf,
}

impl Trial {
    /// Builds and fetches what the trial needs, and keeps a note of it in `scratch`.
    pub(super) fn prepare(made: Vec<Made>, profile: &str, scratch: &Path) -> Result<Self> {
        const NATIVE: &str = "x86_64-unknown-linux-gnu";
        let double = program::build("ncclflow-nvml-double", NATIVE, profile)?.join("libnvidia_ml.so");
        let programs = programs::build_all()?;
        prerequisites::debian_packages(&[
            (&["debootstrap", "--version"], "debootstrap"),
            (&["lintian", "--version"], "lintian"),
            (&["qemu-aarch64-static", "--version"], "qemu-user-static"),
            (&["test", "-e", "/usr/aarch64-linux-gnu/lib/libc.so.6"], "libc6-arm64-cross"),
        ])?;
        let nccl = nccl::library_path(NCCL)?;
        Ok(Self { made, programs, nccl, double, scratch: scratch.to_owned() })
    }

    /// Runs the trial as root: here, or through sudo in another process.
    pub(super) fn run(&self) -> Result<()> {
        fs::create_dir_all(&self.scratch).with_context(|| format!("making `{}`", self.scratch.display()))?;
        if root::is_root() {
            return self.run_here();
        }
        root::ask("trying packages")?;
        let note = self.scratch.join("trial.json");
        fs::write(&note, serde_json::to_vec(self)?).context("noting what is to be tried")?;
        let own = tool::own_program()?;
        let tried = tool::run(root::command(own).arg("dist-trial").arg(&note), "the trial");
        let removed = tool::run(root::command("rm").args(["--recursive"]).arg(&self.scratch), "its files");
        tried.and(removed)
    }

    /// Runs the trial by the note of [`Self::run`].
    pub(super) fn run_noted(note: &Path) -> Result<()> {
        let bytes = fs::read(note).with_context(|| format!("reading `{}`", note.display()))?;
        let trial: Self = serde_json::from_slice(&bytes).context("reading what is to be tried")?;
        trial.run_here()
    }

    fn run_here(&self) -> Result<()> {
        let Self { made: all, scratch, .. } = self;
        let jobs = Jobs::start(&self.programs, &self.nccl, scratch)?;
        let mut unit = None;
        for made in all.iter().filter(|made| !program::is_static(&made.target)) {
            let deb = made.file(".deb")?;
            tool::run(
                std::process::Command::new("lintian").args(["--fail-on", "error"]).arg(deb),
                "the package",
            )?;
            if !program::runs_here(&made.target) {
                check_foreign(made)?;
                continue;
            }
            shells::check(&made.tree)?;
            kubernetes::check(&made.tree.join("dist"), &made.program(), &scratch.join("kubernetes"))?;
            unit = Some(self.try_packages(made, &jobs)?);
        }
        let unit = unit.context("no package for this processor was made, so there is no unit")?;
        for made in all.iter().filter(|made| program::runs_here(&made.target)) {
            let double = (!program::is_static(&made.target)).then_some(&*self.double);
            Place::here(&made.target, &made.program(), double, &jobs).whole(&jobs, &unit, scratch)?;
        }
        Ok(())
    }

    /// Tries the packages. Returns the unit of the Debian package.
    fn try_packages(&self, made: &Made, jobs: &Jobs) -> Result<Unit> {
        let (scratch, double) = (&self.scratch, Some(&*self.double));
        let mut unit = None;
        for suite in SUITES {
            let root = DebianRoot::make(suite, &scratch.join(suite))?;
            root.add_nvml(&self.double, &jobs.gpu_states)?;
            root.install(made.file(".deb")?)?;
            let place = Place::new(&format!(".deb in {suite}"), root.enter(), DebianRoot::nvml_variables());
            place.brief(jobs)?;
            let found = Unit::read(root.path())?;
            systemd::check_unit(root.path())?;
            systemd::try_unit(&found, &root, &jobs.running)?;
            root.purge()?;
            unit = Some(found);
            if suite == SUITES[0] {
                image::run(&made.tree, &root, &scratch.join("image"), jobs)?;
            }
        }
        let rpm = scratch.join("rpm");
        Place::here(".rpm", &rpm::install(made.file(".rpm")?, &rpm)?, double, jobs).brief(jobs)?;
        rpm::remove(&rpm)?;
        let venv = scratch.join("venv");
        Place::here("wheel", &wheel::install(made.file(".whl")?, &venv)?, double, jobs).brief(jobs)?;
        wheel::remove(&venv)?;
        unit.context("no suite of Debian was tried")
    }
}

/// Starts a program for another processor under emulation. Printing its version needs no kernel of that
/// processor.
fn check_foreign(made: &Made) -> Result<()> {
    let arch = made.target.split('-').next().unwrap_or_default();
    let mut program = std::process::Command::new(format!("qemu-{arch}-static"));
    program.args(["-L", &format!("/usr/{arch}-linux-gnu")]).arg(made.program()).arg("--version");
    let said = tool::output(&mut program)?;
    let said = String::from_utf8_lossy(&said);
    eprintln!("{} under emulation: {}", made.target, said.lines().collect::<Vec<_>>().join(", "));
    if !said.starts_with(&format!("ncclflow {}", super::VERSION)) || !said.contains(&made.target) {
        bail!("the program for {} says that it is `{said}`", made.target);
    }
    Ok(())
}
