//! Places of the tree's files in a package.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use super::staging::{copy, copy_folder};

/// Files of the tree, where they are installed, and their modes.
const PLACES: [(&str, &str, u32); 14] = [
    ("ncclflow", "usr/bin/ncclflow", 0o755),
    ("dist/systemd/ncclflow-record.service", "usr/lib/systemd/system/ncclflow-record.service", 0o644),
    ("dist/systemd/ncclflow-watch.service", "usr/lib/systemd/system/ncclflow-watch.service", 0o644),
    ("dist/debian/ncclflow.default", "etc/default/ncclflow", 0o644),
    ("dist/debian/ncclflow-watch.default", "etc/default/ncclflow-watch", 0o644),
    ("completions/ncclflow.bash", "usr/share/bash-completion/completions/ncclflow", 0o644),
    ("completions/ncclflow.fish", "usr/share/fish/vendor_completions.d/ncclflow.fish", 0o644),
    ("README.md", "usr/share/doc/ncclflow/README.md", 0o644),
    ("README.zh-CN.md", "usr/share/doc/ncclflow/README.zh-CN.md", 0o644),
    ("LICENSE-APACHE", "usr/share/doc/ncclflow/LICENSE-APACHE", 0o644),
    ("LICENSE-GPL-2.0", "usr/share/doc/ncclflow/LICENSE-GPL-2.0", 0o644),
    ("THIRD-PARTY-LICENSES", "usr/share/doc/ncclflow/THIRD-PARTY-LICENSES", 0o644),
    ("SECURITY.md", "usr/share/doc/ncclflow/SECURITY.md", 0o644),
    ("CHANGELOG.md", "usr/share/doc/ncclflow/CHANGELOG.md", 0o644),
];
/// Folders that the README points to: what each file and metric means, the dashboard, the rules and programs
/// of alerts, what watchdogs call, the container file and the chart.
const FOLDERS: [&str; 8] = [
    "docs",
    "dist/alerts",
    "dist/grafana",
    "dist/helm",
    "dist/integrations",
    "dist/prometheus",
    "dist/sql",
    "dist/systemd",
];

pub(super) const DOCUMENTATION: &str = "usr/share/doc/ncclflow";
pub(super) const MAN: &str = "usr/share/man";

/// Names that differ between kinds of distributions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names {
    /// Folder that zsh looks for completions in.
    pub(super) zsh: &'static str,
    /// Name of our own licence beside the documentation.
    pub(super) licence: &'static str,
}

/// Puts the files of the tree below a root.
pub(super) fn fill(tree: &Path, root: &Path, names: Names) -> Result<()> {
    for (from, to, mode) in PLACES {
        copy(&tree.join(from), &root.join(to), mode)?;
    }
    copy(&tree.join("completions/_ncclflow"), &root.join(names.zsh).join("_ncclflow"), 0o644)?;
    let documentation = root.join(DOCUMENTATION);
    copy(&tree.join("LICENSE-MIT"), &documentation.join(names.licence), 0o644)?;
    for entry in fs::read_dir(tree.join("man")).context("listing the man pages")? {
        let entry = entry?;
        copy(&entry.path(), &root.join(MAN).join("man1").join(entry.file_name()), 0o644)?;
    }
    for folder in FOLDERS {
        copy_folder(&tree.join(folder), &documentation.join(folder))?;
    }
    copy(&tree.join("dist/Containerfile"), &documentation.join("dist/Containerfile"), 0o644)
}
