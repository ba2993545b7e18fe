//! Time to find a library's functions, parameters and layouts, for each source of symbols.

use std::{fs, path::Path, time::Instant};

use anyhow::{Context as _, Result};
use nccl_library::{
    elf::Image,
    symbols::{nccl_request, resolve},
};
use ncclflow_e2e::harness::stripped;
use serde_json::{Value, json};

use crate::{
    bench::Bench,
    table::{Spread, Table},
};

pub(crate) fn run(bench: &mut Bench) -> Result<Value> {
    let mut libraries = vec![bench.library.clone()];
    for option in ["--strip-debug", "--strip-all"] {
        let folder = bench.fresh("stripped");
        fs::create_dir(&folder)?;
        libraries.push(stripped::copy(&bench.library, &folder, &[option])?);
    }
    let mut table = Table::default();
    for library in libraries {
        let request = nccl_request();
        let once = || -> Result<_> {
            let begun = Instant::now();
            let resolution = resolve(&Image::open(Path::new(&library))?, &request)?;
            Ok((begun.elapsed().as_secs_f64() * 1e3, resolution))
        };
        // The first fills the page cache.
        let (_, resolution) = once().with_context(|| library.display().to_string())?;
        let times = (0..bench.rounds).map(|_| Ok(once()?.0)).collect::<Result<Vec<f64>>>()?;
        table.add([
            ("symbol_source", json!(resolution.symbol_source)),
            ("layouts_from", json!(resolution.layouts_from)),
            ("functions", json!(resolution.functions.values().map(Vec::len).sum::<usize>())),
            ("missing", json!(resolution.missing_required().count())),
            ("milliseconds", json!(Spread::of(times))),
        ]);
    }
    Ok(json!({ "library_bytes": fs::metadata(&bench.library)?.len(), "rungs": table.into_json() }))
}
