//! A kernel from a distribution's packages: its image, and the modules that it needs for this machine's
//! files.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::tool;

/// Modules that the machine's devices and file systems need. A kernel can have any of them built in.
const NEEDED: [&str; 4] = ["virtio_pci", "9pnet_virtio", "9p", "overlay"];

#[derive(Debug)]
pub(super) struct Kernel {
    /// Release, as `uname -r` prints it.
    pub(super) release: String,
    pub(super) image: PathBuf,
    /// Modules in the order in which they can be loaded.
    pub(super) modules: Vec<PathBuf>,
}

impl Kernel {
    /// Unpacks the packages into `folder`.
    pub(super) fn unpack(packages: &[PathBuf], folder: &Path) -> Result<Self> {
        let root = folder.join("kernel");
        fs::create_dir_all(&root).with_context(|| format!("making `{}`", root.display()))?;
        for package in packages {
            extract(package, &root)?;
        }
        Self::of(&root)
    }

    /// Finds the only kernel of a system's files.
    pub(super) fn of(root: &Path) -> Result<Self> {
        let image = image(&root.join("boot"))?;
        let name = image.file_name().and_then(|name| name.to_str()).context("the kernel has an odd name")?;
        let release = name.trim_start_matches("vmlinuz-").to_owned();
        tool::run(
            Command::new("depmod").arg("--basedir").arg(root).arg(&release),
            "its modules (Debian: kmod)",
        )?;
        let folder = root.join("lib/modules").join(&release);
        let read = |name| {
            let path = folder.join(name);
            fs::read_to_string(&path).with_context(|| format!("reading `{}`", path.display()))
        };
        let modules = in_order(&read("modules.dep")?, &read("modules.builtin")?)?
            .into_iter()
            .map(|module| folder.join(module))
            .collect();
        Ok(Self { release, image, modules })
    }
}

/// Unpacks a Debian package.
pub(super) fn extract(package: &Path, to: &Path) -> Result<()> {
    tool::run(Command::new("dpkg-deb").arg("--extract").arg(package).arg(to), "a package (Debian: dpkg)")
}

/// Finds the only kernel of a folder.
fn image(folder: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| format!("no package has `{}`", folder.display()))?;
    let mut images = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("vmlinuz-") {
            images.push(entry.path());
        }
    }
    match images.pop() {
        None => bail!("no package has a kernel: Ubuntu's is in `linux-image-unsigned-…`"),
        Some(image) if images.is_empty() => Ok(image),
        Some(_) => bail!("the packages are of more than one kernel"),
    }
}

/// Returns the needed modules, each after what it needs. `listed` is modules.dep, with lines of
/// `path: what it needs, nearest first`; `built_in` is modules.builtin.
fn in_order<'a>(listed: &'a str, built_in: &str) -> Result<Vec<&'a str>> {
    let by_name: HashMap<&str, (&str, &str)> = listed
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(path, needs)| (module_name(path), (path, needs)))
        .collect();
    let mut ordered = Vec::new();
    for name in NEEDED {
        let Some((path, needs)) = by_name.get(name) else {
            if built_in.lines().any(|path| module_name(path) == name) {
                continue;
            }
            bail!("this kernel has no `{name}`, without which it cannot see this machine's files");
        };
        for module in needs.split_whitespace().rev().chain([*path]) {
            if !ordered.contains(&module) {
                ordered.push(module);
            }
        }
    }
    Ok(ordered)
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
        let built_in = "kernel/drivers/virtio/virtio_pci.ko\nkernel/fs/fuse/fuse.ko\n";
        assert_eq!(in_order(listed, built_in).unwrap(), expected);
        let missing = in_order(listed, "").unwrap_err().to_string();
        assert!(missing.contains("`virtio_pci`"), "{missing}");
    }
}
