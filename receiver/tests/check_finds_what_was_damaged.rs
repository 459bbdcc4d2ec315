//! `check` is run when nobody trusts the store any more. Each sort of damage is planted in a store that was sound, and must be found and
//! named; and a receiver that works meanwhile is no damage.

mod operator;

use operator::{Operator, a_few, send_some, start_some};
use rusqlite::Connection;

async fn with_records(seed: u64) -> Operator {
    let operator = Operator::new();
    operator.let_in(3, seed);
    let receiver = operator.serve("");
    drop(send_some(3, seed, &receiver.url).await);
    receiver.stop();
    operator
}

/// The books of the lane with the most records, with this done to them.
fn change_books(store: &Connection, change: impl FnOnce(&mut Vec<u8>)) {
    let sql = "SELECT device, incarnation, lane FROM runs GROUP BY 1, 2, 3 ORDER BY sum(len) DESC LIMIT 1";
    let lane: (i64, i64, i64) =
        store.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    let which = "device = ? AND incarnation = ? AND lane = ?";
    let sql = format!("SELECT books FROM lanes WHERE {which}");
    let mut books: Vec<u8> = store.query_row(&sql, lane, |row| row.get(0)).unwrap();
    change(&mut books);
    let (device, incarnation, number) = lane;
    let sql = format!("UPDATE lanes SET books = ? WHERE {which}");
    assert_eq!(store.execute(&sql, (books, device, incarnation, number)).unwrap(), 1);
}

type Plant = fn(&Connection);

/// What is done to a store, and what has to be said about it.
const DAMAGE: [(&str, Plant); 9] = [
    ("missing in the log from", |store| {
        // Not the last of its shard: that one is missed by its lane.
        let sql = "DELETE FROM records WHERE position = (SELECT min(position) FROM records)";
        store.execute_batch(sql).unwrap();
    }),
    ("missing in the log from", |store| {
        let sql = "DELETE FROM records WHERE position = (SELECT max(position) FROM records)";
        store.execute_batch(sql).unwrap();
    }),
    ("is stored twice", |store| {
        let sql = "UPDATE records SET counter = counter - 1 WHERE position = (SELECT position + 1 FROM runs WHERE len > 1 LIMIT 1)";
        store.execute_batch(sql).unwrap();
    }),
    ("the list of runs is wrong", |store| {
        store.execute_batch("DELETE FROM runs WHERE position = (SELECT min(position) FROM runs)").unwrap();
    }),
    ("cannot be read", |store| change_books(store, |books| books.push(0))),
    // One counter less was handed out, received and settled: the floor is the first number.
    ("the books say that", |store| change_books(store, |books| books[2] -= 1)),
    ("and no books", |store| store.execute_batch("DELETE FROM lanes").unwrap()),
    ("cannot be read", |store| {
        let sql = "UPDATE records SET lane = 'x' WHERE position = (SELECT min(position) FROM records)";
        store.execute_batch(sql).unwrap();
    }),
    ("behind", |store| store.execute_batch("UPDATE shards SET head = head - 1 WHERE head > 0").unwrap()),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_sort_of_damage_is_found_and_named() {
    let operator = with_records(31).await;
    let sound = operator.run("check").done();
    println!("{sound}");
    for (expected, plant) in DAMAGE {
        std::fs::copy(operator.path("pillarbox.db"), operator.path("damaged.db")).unwrap();
        plant(&Connection::open(operator.path("damaged.db")).unwrap());
        let said = operator.run_with("check --store damaged.db", &[("COLUMNS", "10000")]);
        println!("{}", said.stdout);
        assert_eq!(said.code, Some(1), "{expected}: {said:?}");
        assert!(said.stdout.contains(expected), "{expected}: {}", said.stdout);
        let json = operator.run("check --store damaged.db --json");
        let report: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
        assert!(json.code == Some(1) && !report["findings"].as_array().unwrap().is_empty(), "{report}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_works_is_no_damage() {
    let operator = Operator::new();
    operator.let_in(3, 32);
    let receiver = operator.serve("");
    let fleet = start_some(3, 32, &receiver.url);
    a_few(&fleet, 5).await;
    for _ in 0..10 {
        operator.run("check").done();
    }
    drop(fleet);
    receiver.stop();
}
