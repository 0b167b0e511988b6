//! Commands: the command line, the daemon, the ends of sessions, documents.

mod command_line;
mod daemon;
mod docs_walkthroughs;
mod exit_paths;
mod no_side_effects;
mod stacks;
mod unit;
