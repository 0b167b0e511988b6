//! Files and lines of configuration, in damo's format, and memtierd's: reading and writing.

pub(crate) mod cursor;
pub(crate) mod form;
pub(crate) mod json;
pub(crate) mod kdamonds;
pub(crate) mod kernel;
pub(crate) mod line;
pub(crate) mod memtierd;
pub(crate) mod monitoring;
pub(crate) mod node;
pub(crate) mod plain;
pub(crate) mod quota;
pub(crate) mod scheme;
pub(crate) mod unit;
pub(crate) mod write;
pub(crate) mod yaml;
