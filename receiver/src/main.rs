//! The program `pillarbox`; what it does is in the library's `cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    pillarbox_receiver::cli::main()
}
