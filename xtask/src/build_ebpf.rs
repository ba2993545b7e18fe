//! `cargo xtask make ebpf`: rebuilds the committed eBPF objects, byte for byte the same on every machine.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use crate::{btf_names, debug_sections, ebpf_digest, repository, tool};

/// Pinned compiler and linker: the object depends on both.
const TOOLCHAIN: &str = "1.95.0";
const BPF_LINKER: &str = "0.10.1";
const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Compare a rebuild with the committed objects and fail if a byte differs
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let root = repository::root();
    let sysroot = toolchain()?;
    bpf_linker()?;
    let mut manifest = BTreeMap::from([
        ("rustc".to_owned(), TOOLCHAIN.to_owned()),
        ("bpf-linker".to_owned(), BPF_LINKER.to_owned()),
        ("inputs-sha256".to_owned(), ebpf_digest::of_inputs(&root).context("reading the object's sources")?),
    ]);
    let mut objects = Vec::new();
    for arch in ARCHITECTURES {
        println!("building the eBPF object for {arch}");
        let built = build(&root, arch, &sysroot)?;
        let mut object = fs::read(built.join("ncclflow"))?;
        btf_names::make_valid(&mut object)?;
        let object = debug_sections::removed(&object)?;
        let mut add = |name: String, object: Vec<u8>| {
            manifest.insert(ebpf_digest::key_of(&name), ebpf_digest::hex(&Sha256::digest(&object)));
            objects.push((root.join("ebpf/obj").join(name), object));
        };
        add(format!("ncclflow.{arch}.o"), object);
        // One object for all architectures.
        if arch == ARCHITECTURES[0] {
            add("idle.o".to_owned(), debug_sections::removed(&fs::read(built.join("idle"))?)?);
        }
    }
    let lines: Vec<String> = manifest.iter().map(|(key, value)| format!("{key} {value}\n")).collect();
    let manifest = lines.concat();
    objects.push((root.join("ebpf/obj/MANIFEST"), manifest.into_bytes()));

    for (path, content) in objects {
        if args.check {
            let committed = fs::read(&path).with_context(|| format!("reading `{}`", path.display()))?;
            if committed != content {
                bail!(
                    "`{}` is not what its sources build: run `cargo xtask make ebpf` and commit",
                    path.display()
                );
            }
        } else {
            fs::write(&path, content).with_context(|| format!("writing `{}`", path.display()))?;
        }
        println!("{} {}", if args.check { "same:" } else { "wrote:" }, path.display());
    }
    // An object that nobody builds any more must not lie there either.
    ebpf_digest::check_objects(&root.join("ebpf/obj")).map_err(anyhow::Error::msg)
}

fn build(root: &Path, arch: &str, sysroot: &Path) -> Result<PathBuf> {
    let target_dir = root.join("ebpf/target").join(arch);
    let home = PathBuf::from(env::var_os("HOME").context("HOME is not set")?);
    let cargo_home = env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    // BTF line info holds paths; with remapped ones the object is the same wherever it is built.
    let flags = [
        "-Clinker=bpf-linker".to_owned(),
        "-Clink-arg=--btf".to_owned(),
        "-Cdebuginfo=2".to_owned(),
        // v3 has the atomic fetch-and-add that the hit counters need (kernel 5.12).
        "-Ctarget-cpu=v3".to_owned(),
        format!("--cfg=bpf_target_arch=\"{arch}\""),
        "--check-cfg=cfg(bpf_target_arch,values(any()))".to_owned(),
        format!("--remap-path-prefix={}=/ncclflow", root.display()),
        format!("--remap-path-prefix={}=/cargo", cargo_home.display()),
        format!("--remap-path-prefix={}=/rust", sysroot.display()),
    ];
    let status = Command::new("cargo")
        .arg(format!("+{TOOLCHAIN}"))
        .args(["build", "--release", "--locked", "--target", "bpfel-unknown-none", "-Zbuild-std=core"])
        .current_dir(root.join("ebpf"))
        // -Zbuild-std on the pinned stable compiler.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .env("CARGO_TARGET_DIR", &target_dir)
        // Built in parts it is another object.
        .env("CARGO_INCREMENTAL", "0")
        .env_remove("RUSTUP_TOOLCHAIN")
        // Replaces the workspace's own, of .cargo/config.toml.
        .env("RUSTC", sysroot.join("bin/rustc"))
        .status()
        .context("starting cargo")?;
    if !status.success() {
        bail!("the eBPF side did not build for {arch} ({status})");
    }
    Ok(target_dir.join("bpfel-unknown-none/release"))
}

/// Installs the pinned linker, if it is not there.
fn bpf_linker() -> Result<()> {
    let found = Command::new("bpf-linker").arg("--version").output();
    let version =
        found.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    if version.split_whitespace().last() != Some(BPF_LINKER) {
        println!("installing bpf-linker {BPF_LINKER}, as there is `{version}`");
        let mut cargo = Command::new("cargo");
        cargo.arg(format!("+{TOOLCHAIN}"));
        cargo.args(["install", "bpf-linker", "--version", BPF_LINKER, "--locked", "--quiet"]);
        // Outside of the repository, whose compiler it would be built with.
        cargo.current_dir("/").env_remove("RUSTUP_TOOLCHAIN");
        tool::run(&mut cargo, &format!("bpf-linker {BPF_LINKER}"))?;
    }
    Ok(())
}

/// Finds the folder of the pinned compiler and its sources, which only this command needs. Installs them if
/// they are not there.
fn toolchain() -> Result<PathBuf> {
    let sysroot = || {
        let rustc = Command::new("rustc").arg(format!("+{TOOLCHAIN}")).args(["--print", "sysroot"]).output();
        // The compiler names its sources without the links on the way.
        let sysroot = fs::canonicalize(String::from_utf8_lossy(&rustc.ok()?.stdout).trim()).ok()?;
        sysroot.join("lib/rustlib/src/rust/library/core/src/lib.rs").exists().then_some(sysroot)
    };
    if let Some(sysroot) = sysroot() {
        return Ok(sysroot);
    }
    println!("installing the toolchain {TOOLCHAIN} with rust-src");
    let install = ["toolchain", "install", TOOLCHAIN, "--profile", "minimal", "--component", "rust-src"];
    let _ = Command::new("rustup").args(install).arg("--no-self-update").status();
    sysroot().with_context(|| {
        format!("Rust {TOOLCHAIN} with rust-src is needed: `rustup {}` failed", install.join(" "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_that_is_embedded_is_in_the_manifest_with_its_content() {
        let committed = repository::root().join("ebpf/obj");
        ebpf_digest::check_objects(&committed).unwrap();
        let folder = env::temp_dir().join(format!("ncclflow-objects-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let copy = || {
            for entry in fs::read_dir(&committed).unwrap() {
                let entry = entry.unwrap();
                fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
            }
        };
        for name in ["idle.o", "ncclflow.x86_64.o", "ncclflow.aarch64.o"] {
            copy();
            ebpf_digest::check_objects(&folder).unwrap();
            let path = folder.join(name);
            let mut object = fs::read(&path).unwrap();
            *object.last_mut().unwrap() ^= 1;
            fs::write(&path, object).unwrap();
            assert!(ebpf_digest::check_objects(&folder).unwrap_err().contains(name));
        }
        copy();
        fs::write(folder.join("further.o"), "x").unwrap();
        assert!(ebpf_digest::check_objects(&folder).unwrap_err().contains("further.o"));
        fs::remove_dir_all(folder).unwrap();
    }
}
