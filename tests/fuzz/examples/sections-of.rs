//! `sections-of LIBRARY SEED`: makes an input of the target `sections` from a library.

use std::{env, error::Error, fs, path::Path};

use nccl_library::elf::{Budget, Image, Machine};
use ncclflow_fuzz::assembly;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [library, seed] = &arguments[..] else { return Err("give a library and a file to write".into()) };
    let image = Image::open(Path::new(library))?;
    let mut contents = Vec::new();
    for name in assembly::names() {
        let content = match image.section(name) {
            Some(section) => image.section_data(section, 1 << 20, &mut Budget::default())?,
            None => Box::default(),
        };
        contents.push(content);
    }
    let contents: Vec<&[u8]> = contents.iter().map(|content| &**content).collect();
    let machine = u8::from(image.machine() == Machine::Aarch64);
    fs::write(seed, [vec![machine], assembly::pack(&contents)].concat())?;
    Ok(())
}
