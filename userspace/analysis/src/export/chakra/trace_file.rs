//! A `.et` file: the metadata, then the nodes, each after its length.

use std::io::{self, Write as _};

use prost::Message;

use super::messages::{Attribute, AttributeValue, GlobalMetadata, Node};
use recording::sinks::{NewFile, OutputDir};

/// Bytes that are gathered before they are written: an export has a file for each rank of the job.
const BATCH: usize = 64 << 10;

/// Version of the schema, `GlobalMetadata.version`.
const VERSION: &str = "1.0.0";

#[derive(Debug)]
pub(super) struct EtFile {
    file: NewFile,
    batch: Vec<u8>,
}

impl EtFile {
    pub(super) fn create(dir: &OutputDir, name: String) -> io::Result<Self> {
        let mut made = Self { file: NewFile::within(dir, name)?, batch: Vec::new() };
        let text = |text: &str| AttributeValue::Text(text.to_owned());
        made.push(&GlobalMetadata {
            version: VERSION.to_owned(),
            attributes: vec![
                Attribute::new("schema", text(VERSION)),
                Attribute::new("made_by", text(concat!("ncclflow ", env!("CARGO_PKG_VERSION")))),
            ],
        })?;
        Ok(made)
    }

    pub(super) fn node(&mut self, node: &Node) -> io::Result<()> {
        self.push(node)
    }

    fn push(&mut self, message: &impl Message) -> io::Result<()> {
        // A vector grows as needed.
        message.encode_length_delimited(&mut self.batch).map_err(io::Error::other)?;
        if self.batch.len() >= BATCH { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> io::Result<()> {
        self.file.write_all(&self.batch)?;
        self.batch.clear();
        Ok(())
    }

    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.write()?;
        self.file.publish()
    }
}
