//! Programs that are shipped: built on one x86-64 machine for all processors, and checked for what they need
//! of the system that they run on.
//!
//! The packaged program links glibc dynamically, of a version that is as old as the systems that it is for:
//! only such a program can load NVML. zig links it, as it has the stubs of every glibc for every processor.
//! The rescue program is static: one file that runs everywhere, and knows nothing of GPUs.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use object::{
    elf::{DT_NEEDED, FileHeader64, PT_INTERP},
    read::elf::{Dyn as _, ElfFile64, FileHeader as _, ProgramHeader as _},
};

use crate::{prerequisites, programs, tool};

/// Newest glibc that a packaged program may need: that of RHEL 8. Ubuntu 20.04 and Debian 11 have 2.31.
const GLIBC: (u32, u32) = (2, 28);

/// Libraries that it may need: parts of glibc.
const LIBRARIES: [&str; 6] = ["libc.so", "libm.so", "libpthread.so", "libdl.so", "librt.so", "ld-linux"];

/// The profile of `--quick`.
pub(super) const QUICK: &str = "quick";

/// Tells whether programs for a target run on this machine.
pub(super) fn runs_here(target: &str) -> bool {
    target.starts_with(std::env::consts::ARCH)
}

/// Tells whether the program for a target is static: the rescue program.
pub(super) fn is_static(target: &str) -> bool {
    target.ends_with("-musl")
}

/// Builds a package for a target in this profile. Returns the folder with what was built.
pub(super) fn build(package: &str, target: &str, profile: &str) -> Result<PathBuf> {
    prerequisites::rust_target(target)?;
    let zig = prerequisites::zig()?;
    eprintln!("building {package} for {target}");
    let with_glibc =
        if is_static(target) { target.to_owned() } else { format!("{target}.{}.{}", GLIBC.0, GLIBC.1) };
    let mut cargo = zig.cargo_zigbuild();
    cargo.args(["--quiet", "--locked", "--profile", profile, "--package", package, "--target", &with_glibc]);
    if profile == QUICK && !runs_here(target) {
        // It is only started for its version.
        cargo.args(["--config", "profile.quick.opt-level=0"]);
    }
    tool::run(&mut cargo, &format!("{package} for {target}"))?;
    Ok(programs::target_folder()?.join(target).join(profile))
}

/// Fails if the program needs more of its system than the kernel (static) or an old glibc (dynamic).
pub(super) fn check(program: &Path, target: &str) -> Result<()> {
    let needs = Needs::of(program)?;
    let name = program.display();
    if is_static(target) {
        if needs.loader || !needs.libraries.is_empty() {
            bail!("`{name}` is not static: it needs a loader or {:?}", needs.libraries);
        }
        return Ok(());
    }
    match needs.glibc {
        Some(version) if version <= GLIBC => {}
        Some((major, minor)) => bail!(
            "`{name}` needs glibc {major}.{minor}: systems with {}.{} cannot start it",
            GLIBC.0,
            GLIBC.1
        ),
        None => bail!("`{name}` names no version of glibc: it cannot load NVML"),
    }
    let is_foreign = |library: &&String| !LIBRARIES.iter().any(|known| library.starts_with(known));
    if let Some(library) = needs.libraries.iter().find(is_foreign) {
        bail!("`{name}` needs {library}, which is no part of glibc");
    }
    Ok(())
}

/// Needs of a program, by its ELF file.
#[derive(Debug, Default)]
struct Needs {
    loader: bool,
    libraries: Vec<String>,
    /// Newest version of glibc's symbols.
    glibc: Option<(u32, u32)>,
}

impl Needs {
    fn of(program: &Path) -> Result<Self> {
        let context = || format!("reading `{}`", program.display());
        let bytes = fs::read(program).with_context(context)?;
        let file = ElfFile64::<object::Endianness>::parse(&*bytes).with_context(context)?;
        let (endian, mut needs) = (file.endian(), Self::default());
        let sections = FileHeader64::parse(&*bytes)?.sections(endian, &*bytes).with_context(context)?;
        if let Some((mut files, link)) = sections.gnu_verneed(endian, &*bytes).with_context(context)? {
            let strings = sections.strings(endian, &*bytes, link).with_context(context)?;
            while let Some((_, mut versions)) = files.next().with_context(context)? {
                while let Some(version) = versions.next().with_context(context)? {
                    needs.glibc = needs.glibc.max(glibc_version(version.name(endian, strings)?));
                }
            }
        }
        needs.loader = file.elf_program_headers().iter().any(|header| header.p_type(endian) == PT_INTERP);
        if let Some((entries, link)) = sections.dynamic(endian, &*bytes).with_context(context)? {
            let strings = sections.strings(endian, &*bytes, link).with_context(context)?;
            for entry in entries.iter().filter(|entry| entry.tag(endian) == DT_NEEDED) {
                let name = entry.string(endian, strings).with_context(context)?;
                needs.libraries.push(String::from_utf8_lossy(name).into_owned());
            }
        }
        Ok(needs)
    }
}

/// Parses `GLIBC_2.28`.
fn glibc_version(name: &[u8]) -> Option<(u32, u32)> {
    let mut numbers = std::str::from_utf8(name).ok()?.strip_prefix("GLIBC_")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This test's own program is of the machine's glibc.
    #[test]
    fn a_program_for_a_newer_glibc_and_one_that_is_not_static_are_refused() {
        let own = std::env::current_exe().unwrap();
        let needs = Needs::of(&own).unwrap();
        assert!(needs.loader && needs.libraries.iter().any(|library| library == "libc.so.6"), "{needs:?}");
        let refused = |target| check(&own, target).map_err(|error| error.to_string());
        if needs.glibc > Some(GLIBC) {
            let why = refused("x86_64-unknown-linux-gnu").unwrap_err();
            assert!(why.contains("systems with 2.28 cannot start it"), "{why}");
        }
        assert!(refused("x86_64-unknown-linux-musl").unwrap_err().contains("is not static"));
        assert_eq!(glibc_version(b"GLIBC_2.3.4"), Some((2, 3)));
        assert_eq!(glibc_version(b"GCC_3.0"), None);
    }
}
