//! The peer on PostgreSQL: the same three rows, each table with one statement a batch.

use pillarbox_receiver::intake::Post;
use tokio_postgres::{Client, NoTls};

pub(crate) async fn open(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("it runs");
    tokio::spawn(connection);
    client
        .batch_execute(
            "CREATE TABLE IF NOT EXISTS keys (key TEXT PRIMARY KEY, hash BYTEA NOT NULL, expires_ms BIGINT NOT NULL);
             CREATE TABLE IF NOT EXISTS naive_records (id BIGSERIAL PRIMARY KEY, key TEXT NOT NULL, device TEXT NOT NULL,
                 kind INT NOT NULL, boot BIGINT NOT NULL, uptime_ms BIGINT NOT NULL, wall_ms BIGINT, body BYTEA NOT NULL);
             CREATE TABLE IF NOT EXISTS outbox (id BIGSERIAL PRIMARY KEY, record BIGINT NOT NULL, published_ms BIGINT);",
        )
        .await
        .expect("it is SQL");
    client
}

/// Statements that do not change from batch to batch.
pub(crate) struct Naive {
    client: Client,
    keys: tokio_postgres::Statement,
    records: tokio_postgres::Statement,
    outbox: tokio_postgres::Statement,
}

impl Naive {
    pub(crate) async fn new(url: &str) -> Self {
        let client = open(url).await;
        let keys = "INSERT INTO keys SELECT * FROM unnest($1::text[], $2::bytea[], $3::bigint[]) ON CONFLICT DO NOTHING RETURNING key";
        let keys = client.prepare(keys).await.expect("it is SQL");
        let records = "INSERT INTO naive_records (key, device, kind, boot, uptime_ms, wall_ms, body) \
                       SELECT * FROM unnest($1::text[], $2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bytea[]) \
                       RETURNING id";
        let records = client.prepare(records).await.expect("it is SQL");
        let outbox = "INSERT INTO outbox (record) SELECT * FROM unnest($1::bigint[])";
        let outbox = client.prepare(outbox).await.expect("it is SQL");
        Self { client, keys, records, outbox }
    }

    pub(crate) async fn take(&mut self, post: &Post) {
        let all = &post.records;
        let names: Vec<String> =
            all.iter().map(|record| record.key.of(&post.head.device).to_string()).collect();
        let hashes: Vec<Vec<u8>> = all.iter().map(|record| record.fingerprint().to_vec()).collect();
        let expiry = vec![post.now_ms as i64; all.len()];
        let devices = vec![post.head.device.as_str(); all.len()];
        let kinds: Vec<i32> = all.iter().map(|record| record.kind.into()).collect();
        let boots: Vec<i64> = all.iter().map(|record| record.time.boot.into()).collect();
        let uptimes: Vec<i64> = all.iter().map(|record| record.time.uptime_ms as i64).collect();
        let walls: Vec<Option<i64>> =
            all.iter().map(|record| record.time.wall_ms.map(|ms| ms as i64)).collect();
        let bodies: Vec<&[u8]> = all.iter().map(|record| &record.body[..]).collect();
        let transaction = self.client.transaction().await.expect("it runs");
        let new = transaction.query(&self.keys, &[&names, &hashes, &expiry]).await.expect("it is SQL");
        assert_eq!(new.len(), all.len(), "the bench sends nothing twice");
        let row: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
            [&names, &devices, &kinds, &boots, &uptimes, &walls, &bodies];
        let ids = transaction.query(&self.records, &row).await.expect("it is SQL");
        let ids: Vec<i64> = ids.iter().map(|row| row.get(0)).collect();
        transaction.execute(&self.outbox, &[&ids]).await.expect("it is SQL");
        transaction.commit().await.expect("it runs");
    }
}
