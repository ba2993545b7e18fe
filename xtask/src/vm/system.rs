//! The files that a virtual machine has, by its processor: this machine's own, or a Debian for arm64.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};

use super::kernel;
use crate::{nccl, prerequisites, programs, repository, root, tool};

/// Processor of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Arch {
    #[value(name = "x86-64")]
    X86_64,
    Arm64,
}

/// How QEMU emulates a processor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Emulator {
    pub(super) program: &'static str,
    /// Debian's package that has it.
    pub(super) package: &'static str,
    pub(super) options: &'static [&'static str],
    pub(super) console: &'static str,
}

impl Arch {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86-64",
            Self::Arm64 => "arm64",
        }
    }

    pub(super) fn emulator(self) -> Emulator {
        match self {
            Self::X86_64 => Emulator {
                program: "qemu-system-x86_64",
                package: "qemu-system-x86",
                options: &["-cpu", "max"],
                console: "ttyS0",
            },
            // Pointers are signed by a function that is quick to emulate.
            Self::Arm64 => Emulator {
                program: "qemu-system-aarch64",
                package: "qemu-system-arm",
                options: &["-machine", "virt", "-cpu", "max,pauth-impdef=on"],
                console: "ttyAMA0",
            },
        }
    }
}

/// Files of a machine.
#[derive(Clone, Debug)]
pub(super) struct System {
    /// Folder of this machine that is its root.
    pub(super) root: PathBuf,
    /// Folders of this machine that it sees at the same paths.
    pub(super) shared: Vec<PathBuf>,
    /// Folder of programs that were built for it.
    pub(super) programs: Option<PathBuf>,
}

impl System {
    /// Installs and makes what is not there yet.
    pub(super) fn of(arch: Arch) -> Result<Self> {
        let Emulator { program, package, .. } = arch.emulator();
        prerequisites::debian_packages(&[
            (&[program, "--version"], package),
            (&["cpio", "--version"], "cpio"),
            (&["depmod", "--version"], "kmod"),
        ])?;
        match arch {
            Arch::X86_64 => {
                prerequisites::debian_packages(&[(&["busybox", "true"], "busybox-static")])?;
                Ok(Self { root: "/".into(), shared: Vec::new(), programs: None })
            }
            Arch::Arm64 => {
                let programs = build_for_arm64()?;
                let shared = vec![repository::root(), programs::target_folder()?, nccl::cache()?];
                Ok(Self { root: debian_for_arm64()?, shared, programs: Some(programs) })
            }
        }
    }
}

/// Target of programs for arm64, and the glibc of [`RELEASE`].
const ARM64: [&str; 2] = ["aarch64-unknown-linux-gnu", "2.36"];

/// Builds the workspace's programs, libraries and examples for arm64. Returns the programs' folder.
fn build_for_arm64() -> Result<PathBuf> {
    let [target, glibc] = ARM64;
    prerequisites::rust_target(target)?;
    let zig = prerequisites::zig()?;
    eprintln!("building all programs for {target}");
    let mut cargo = zig.cargo_zigbuild();
    cargo.args(["--quiet", "--locked", "--workspace", "--lib", "--bins", "--examples"]);
    // What runs here, and not there.
    cargo.args(["--exclude", "xtask", "--exclude", "ncclflow-bench"]);
    // Emulated, what is not optimised would be slow.
    cargo.args(["--config", "profile.dev.opt-level=1", "--config", "profile.dev.debug=0"]);
    tool::run(cargo.args(["--target", &format!("{target}.{glibc}")]), "the programs for arm64")?;
    Ok(programs::target_folder()?.join(target).join("debug"))
}

/// Packages of the machine, besides those that every Debian has.
const PACKAGES: [&str; 7] = [
    "linux-image-arm64",
    "busybox-static",
    "libstdc++6",
    "python3-minimal",
    // For copies of libraries without symbols.
    "binutils",
    "util-linux",
    "iproute2",
];

/// Release of Debian; its kernel is 6.1.
const RELEASE: &str = "bookworm";

/// Fetches the files of a Debian for arm64, and keeps them. Its packages are unpacked and not configured:
/// programs run without.
fn debian_for_arm64() -> Result<PathBuf> {
    let folder = programs::target_folder()?.join(format!("debian-{RELEASE}-arm64"));
    if folder.exists() {
        return Ok(folder);
    }
    prerequisites::debian_packages(&[(&["debootstrap", "--version"], "debootstrap")])?;
    root::become_root("a system's files, which belong to root")?;
    let new = folder.with_extension("new");
    if new.exists() {
        fs::remove_dir_all(&new).with_context(|| format!("removing `{}`", new.display()))?;
    }
    eprintln!("fetching a Debian for arm64 into {}", folder.display());
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--arch=arm64", "--foreign", "--variant=minbase"]);
    debootstrap.arg(format!("--include={}", PACKAGES.join(","))).arg(RELEASE).arg(&new);
    tool::run(debootstrap.stdout(Stdio::null()), "a Debian for arm64")?;
    let packages = new.join("var/cache/apt/archives");
    let entries = fs::read_dir(&packages).with_context(|| format!("reading `{}`", packages.display()))?;
    for entry in entries {
        let package = entry?.path();
        if package.extension().is_some_and(|extension| extension == "deb") {
            kernel::extract(&package, &new)?;
            fs::remove_file(&package)?;
        }
    }
    // Only a complete folder has the name by which it is found.
    fs::rename(&new, &folder).with_context(|| format!("naming `{}`", folder.display()))?;
    Ok(folder)
}
