//! `pillarbox records tail`: the youngest records, and those that come. Each shard is read on from where it was: inside of a
//! shard no record comes before one that was read.

use std::collections::VecDeque;
use std::time::Duration;

use super::Result;
use super::output::{Reader, tamed, text};
use super::records::Filter;
use super::target::Target;
use crate::admin::{Place, RecordView, ShowHeads};
use crate::store::Position;

/// How often it is looked whether there are more.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// So much further it is looked back each time that too few were found.
const FURTHER: u64 = 16;

pub(super) async fn run(
    target: &Target,
    reader: Reader,
    filter: &Filter,
    last: usize,
    no_follow: bool,
) -> Result<()> {
    let mut seen = heads(target).await?;
    let mut found = Vec::new();
    for head in &seen {
        found.extend(youngest(target, filter, *head, last).await?);
    }
    found.sort_by_key(|record| record.received_at);
    let too_many = found.len().saturating_sub(last);
    for record in found.iter().skip(too_many) {
        say(reader, record)?;
    }
    if no_follow {
        return Ok(());
    }
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        let now = heads(target).await?;
        let mut new = Vec::new();
        for head in now {
            let known = seen.iter_mut().find(|known| known.shard() == head.shard());
            let Some(known) = known.filter(|known| **known < head) else { continue };
            new.extend(between(target, filter, *known, head).await?);
            *known = head;
        }
        new.sort_by_key(|record| record.received_at);
        for record in &new {
            say(reader, record)?;
        }
    }
}

async fn heads(target: &Target) -> Result<Vec<Position>> {
    Ok(target.ask(ShowHeads {}).await?.heads.into_iter().map(|place| place.0).collect())
}

/// The youngest records of a shard: so many, if there are so many.
async fn youngest(target: &Target, filter: &Filter, head: Position, last: usize) -> Result<Vec<RecordView>> {
    let mut back = last as u64;
    loop {
        let from = Position::new(head.shard(), head.n().saturating_sub(back));
        let found = between(target, filter, from, head).await?;
        if found.len() >= last || from.n() == 0 {
            let mut found = VecDeque::from(found);
            found.drain(..found.len().saturating_sub(last));
            return Ok(found.into());
        }
        back = back.saturating_mul(FURTHER);
    }
}

/// The records of a shard behind one place, up to another one.
async fn between(target: &Target, filter: &Filter, from: Position, to: Position) -> Result<Vec<RecordView>> {
    let mut found = Vec::new();
    let mut after = Some(Place(from));
    while after.is_some() {
        let page = target.ask(filter.log(Some(to.shard()), after)).await?;
        after = page.next.filter(|next| next.0 < to);
        found.extend(page.records.into_iter().filter(|record| record.place.is_some_and(|at| at.0 <= to)));
    }
    Ok(found)
}

fn say(reader: Reader, record: &RecordView) -> Result<()> {
    if reader.json {
        return text(&serde_json::to_string(record).map_err(std::io::Error::from)?);
    }
    let kind = record.name.clone().unwrap_or_else(|| record.kind.to_string());
    let time = record.received_at.to_the_second();
    text(&tamed(&format!("{time}  {}  {kind}  {}", record.key, record.body())))
}
