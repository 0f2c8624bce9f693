//! One writer at a time: a lever is read, changed and written again, and of two commands that do so at once the second
//! would undo the first.

use super::LedgerError;
use std::fs::File;
use std::path::Path;

/// Of a ledger's folder, until it is dropped. Readers need none: a file is replaced at once or not at all.
#[derive(Debug)]
pub struct Lock {
    _held: File,
}

impl Lock {
    /// Waits for whoever holds it; commands hold it for milliseconds.
    ///
    /// # Errors
    /// A folder that cannot be opened, or a file system without locks.
    pub fn of(folder: &Path) -> Result<Self, LedgerError> {
        let failed = |source| LedgerError::Read { path: folder.to_owned(), source };
        // Opening a pipe would wait for its writer.
        if !std::fs::metadata(folder).map_err(failed)?.is_dir() {
            let what = "this is no folder of levers".to_owned();
            return Err(LedgerError::BadFile { path: folder.to_owned(), what });
        }
        let held = File::open(folder).map_err(failed)?;
        held.lock().map_err(failed)?;
        Ok(Lock { _held: held })
    }
}
