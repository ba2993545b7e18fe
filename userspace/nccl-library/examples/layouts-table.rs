//! Adds libraries to the table of shipped layouts. Run by `cargo xtask make layouts`.
//!
//! `layouts-table TABLE LIBRARY…`: TABLE is read if it is there, and written anew.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context as _, Result, bail};
use nccl_library::elf::Image;
use nccl_library::symbols::resolve;
use nccl_library::symbols::shipped::{self, Table, TableBuilder};

fn main() -> Result<()> {
    let mut arguments = env::args_os().skip(1).map(PathBuf::from);
    let Some(place) = arguments.next() else { bail!("usage: layouts-table TABLE LIBRARY…") };
    let mut builder = match fs::read_to_string(&place) {
        Ok(text) => TableBuilder::from_table(&Table::parse(&text)?)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => TableBuilder::default(),
        Err(error) => return Err(error).with_context(|| format!("reading `{}`", place.display())),
    };
    for library in arguments {
        add(&mut builder, &library).with_context(|| format!("`{}`", library.display()))?;
    }
    let text = builder.render()?;
    fs::write(&place, &text).with_context(|| format!("writing `{}`", place.display()))?;
    let libraries = Table::parse(&text)?.libraries().len();
    writeln!(io::stdout(), "{}: {libraries} libraries, {} bytes", place.display(), text.len())?;
    Ok(())
}

fn add(builder: &mut TableBuilder, path: &Path) -> Result<()> {
    let resolution = resolve(&Image::open(path)?, &shipped::request())?;
    builder.add(&resolution)?;
    let version = resolution.nccl_version.map(|version| version.to_string()).unwrap_or_default();
    let (structs, enums) = (resolution.layouts.structs.len(), resolution.layouts.enums.len());
    writeln!(io::stdout(), "{version}: {structs} structs, {enums} enumerations  {}", path.display())?;
    Ok(())
}
