//! A kernel out of a distribution's packages: its image, and the modules that give it this machine's files.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::tool;

/// What the machine's devices and file systems need. A kernel can have any of them built in.
const NEEDED: [&str; 4] = ["virtio_pci", "9pnet_virtio", "9p", "overlay"];

#[derive(Debug)]
pub(super) struct Kernel {
    /// As `uname -r` says.
    pub(super) release: String,
    pub(super) image: PathBuf,
    /// In the order in which they can be loaded.
    pub(super) modules: Vec<PathBuf>,
}

impl Kernel {
    /// Unpacks into `folder`.
    pub(super) fn unpack(packages: &[PathBuf], folder: &Path) -> Result<Self> {
        let root = folder.join("kernel");
        fs::create_dir_all(&root).with_context(|| format!("making `{}`", root.display()))?;
        for package in packages {
            tool::run(
                Command::new("dpkg-deb").arg("--extract").arg(package).arg(&root),
                "the kernel (Debian: dpkg)",
            )?;
        }
        let image = file_beginning_with(&root.join("boot"), "vmlinuz-")?;
        let name = image.file_name().and_then(|name| name.to_str()).context("the kernel has an odd name")?;
        let release = name.trim_start_matches("vmlinuz-").to_owned();
        tool::run(
            Command::new("depmod").arg("--basedir").arg(&root).arg(&release),
            "its modules (Debian: kmod)",
        )?;
        let folder = root.join("lib/modules").join(&release);
        let listed = folder.join("modules.dep");
        let listed =
            fs::read_to_string(&listed).with_context(|| format!("reading `{}`", listed.display()))?;
        let modules = in_order(&listed).into_iter().map(|module| folder.join(module)).collect();
        Ok(Self { release, image, modules })
    }
}

fn file_beginning_with(folder: &Path, prefix: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| format!("no package has `{}`", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            return Ok(entry.path());
        }
    }
    bail!("no package has a kernel: Ubuntu's is in `linux-image-unsigned-…`")
}

/// The needed modules of a modules.dep, `path: what it needs, nearest first`, each after what it needs.
fn in_order(listed: &str) -> Vec<&str> {
    let by_name: HashMap<&str, (&str, &str)> = listed
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(path, needs)| (module_name(path), (path, needs)))
        .collect();
    let mut ordered = Vec::new();
    for (path, needs) in NEEDED.iter().filter_map(|name| by_name.get(name)) {
        for module in needs.split_whitespace().rev().chain([*path]) {
            if !ordered.contains(&module) {
                ordered.push(module);
            }
        }
    }
    ordered
}

fn module_name(path: &str) -> &str {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file)
}

#[cfg(test)]
mod tests {
    use super::in_order;

    #[test]
    fn a_module_comes_after_what_it_needs() {
        let listed = "kernel/fs/9p/9p.ko.zst: kernel/fs/netfs/netfs.ko.zst kernel/net/9p/9pnet.ko.zst\n\
                      kernel/net/9p/9pnet_virtio.ko.zst: kernel/net/9p/9pnet.ko.zst kernel/virtio/virtio.ko.zst\n\
                      kernel/fs/ext4/ext4.ko.zst:\n\
                      kernel/fs/overlayfs/overlay.ko:\n";
        let expected = [
            "kernel/virtio/virtio.ko.zst",
            "kernel/net/9p/9pnet.ko.zst",
            "kernel/net/9p/9pnet_virtio.ko.zst",
            "kernel/fs/netfs/netfs.ko.zst",
            "kernel/fs/9p/9p.ko.zst",
            "kernel/fs/overlayfs/overlay.ko",
        ];
        assert_eq!(in_order(listed), expected);
    }
}
