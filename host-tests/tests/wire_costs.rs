//! What a record costs on the wire stays within its budget. `cargo xtask bench` prints the numbers.
//!
//! That a body is copied once, from the ring's buffer into the batch's, is a property of the code and not counted here: `Desk::pack` hands
//! each `Stored`, which borrows the ring's buffer, to `BatchWriter::record`, which writes it into `tx`; `flush` lends that very
//! range of `tx` to `Connection::post` as `body: &[u8]`, and reqwless writes a body of known length from there to the connection. Over
//! TLS it is copied once more, to be encrypted.

use host_tests::wire_costs::{Bytes, Report, TLS_RECORD, flush, handshake, run};

#[tokio::test]
async fn a_batch_of_64_records_stays_within_its_budget() {
    let flush = flush(64, 16 * 1024, false).await.unwrap();
    println!("{flush:?}");
    let [Bytes { sent, received }] = flush.http[..] else { panic!("more than one batch: {flush:?}") };
    // What the connection carried is what the server read and said, to the byte.
    assert_eq!(flush.wire, Bytes { sent, received });
    assert!(sent <= 1_950, "the request takes {sent} bytes");
    assert!(received <= 250, "the answer takes {received} bytes");
}

#[tokio::test]
async fn one_handshake_serves_many_batches() {
    let one = flush(1, 16 * 1024, true).await.unwrap();
    let handshake = handshake(&one);
    let many = flush(300, 1024, true).await.unwrap();
    println!("{handshake:?} {many:?}");
    assert_eq!((one.http.len(), one.connections, many.connections), (1, 1, 1));
    assert!(many.http.len() >= 8, "{} batches", many.http.len());
    let batches: u64 = many.http.iter().map(|batch| batch.total() + 2 * TLS_RECORD).sum();
    assert_eq!(many.wire.total(), handshake.total() + batches);
}

#[test]
fn batches_are_cheaper_than_requests() {
    let report = run().unwrap();
    println!("{report}");
    let Report { lines, handshake, json } = report;
    for line in lines.iter().filter(|line| line.records >= 10) {
        let plain = line.plain.total() / u64::from(line.records);
        assert!(plain * 5 < json.total(), "{line:?}");
        // Even with a handshake of its own.
        let over_tls = (line.tls.total() + handshake.total()) / u64::from(line.records);
        assert!(over_tls * 2 < json.total(), "{line:?}");
    }
}
