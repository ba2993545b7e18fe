//! Embeds the committed eBPF object, and stops the build when it was not made from the sources beside it.

#[path = "../../ebpf/digest.rs"]
mod ebpf_digest;

use std::{env, fs, path::Path};

use sha2::{Digest as _, Sha256};

const REMEDY: &str = "run `cargo xtask make ebpf`, or set NCCLFLOW_EBPF to an object that you built yourself";

fn main() {
    println!("cargo::rerun-if-env-changed=NCCLFLOW_EBPF");
    if let Err(problem) = embed() {
        println!("cargo::error={problem}");
    }
}

fn root() -> Result<&'static Path, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    folder.ancestors().nth(2).ok_or_else(|| "the crate has no folders above it".to_owned())
}

fn embed() -> Result<(), String> {
    let out = env::var("OUT_DIR").map_err(|error| format!("OUT_DIR: {error}"))?;
    let object = match env::var_os("NCCLFLOW_EBPF") {
        Some(path) => read(Path::new(&path))?,
        None => committed_object()?,
    };
    let sha256 = ebpf_digest::hex(&Sha256::digest(&object));
    println!("cargo::rustc-env=NCCLFLOW_BUILD_EBPF={}", sha256.get(..12).unwrap_or_default());
    let embed = |name: &str, object: Vec<u8>| {
        let embedded = Path::new(&out).join(name);
        fs::write(&embedded, object).map_err(|error| format!("writing `{}`: {error}", embedded.display()))
    };
    // Also with NCCLFLOW_EBPF: `idle.o` is embedded all the same.
    let objects = root()?.join("ebpf/obj");
    ebpf_digest::check_objects(&objects).map_err(|error| format!("{error}: {REMEDY}"))?;
    println!("cargo::rerun-if-changed={}", objects.display());
    embed("ncclflow.o", object)?;
    embed("idle.o", read(&objects.join("idle.o"))?)
}

fn committed_object() -> Result<Vec<u8>, String> {
    let arch =
        env::var("CARGO_CFG_TARGET_ARCH").map_err(|error| format!("CARGO_CFG_TARGET_ARCH: {error}"))?;
    let root = root()?;
    let inputs =
        ebpf_digest::input_files(root).map_err(|error| format!("listing the eBPF sources: {error}"))?;
    let object_path = root.join(format!("ebpf/obj/ncclflow.{arch}.o"));
    let manifest_path = root.join("ebpf/obj/MANIFEST");
    for path in inputs.iter().chain([&object_path, &manifest_path]) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    // A source file that is added changes no file listed above, but its folder.
    for folder in ["common/src", "ebpf/src"] {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
    }

    let manifest = String::from_utf8_lossy(&read(&manifest_path)?).into_owned();
    let stated = |key: &str| manifest.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    let digest =
        ebpf_digest::of_inputs(root).map_err(|error| format!("reading the eBPF sources: {error}"))?;
    if stated("inputs-sha256") != Some(digest.as_str()) {
        return Err(format!("the committed eBPF object was built from other sources than these: {REMEDY}"));
    }
    // Its checksum is checked with those of all objects.
    read(&object_path)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("reading `{}`: {error}: {REMEDY}", path.display()))
}
