//! Integration tests of configurations and requests.

mod files;
mod golden;
mod hostile;
mod memtierd;
mod request;
mod tier;
