//! What a receiver promises, it promises on whatever database it has: one set of tests, on SQLite and on PostgreSQL, both real.

mod promises;
