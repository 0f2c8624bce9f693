//! Responses that are kept, in memory and within bounds: the one that was used longest ago goes first. One that is
//! still made stays. Restarting the server forgets all of them.

use super::background::Background;
use super::items::{Item, ItemIds};
use super::response::Response;
use crate::error::ApiError;
use crate::limits::ServerLimits;
use crate::sync::lock;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

/// A response with what it answers.
pub struct Record {
    pub id: String,
    /// The response that this one continues.
    pub previous: Option<String>,
    pub input: Vec<Item>,
    pub told: Told,
}

pub enum Told {
    Whole(Box<Response>),
    Background(Box<Background>),
}

impl Record {
    pub fn with_response<T>(&self, see: impl FnOnce(&Response) -> T) -> T {
        match &self.told {
            Told::Whole(response) => see(response),
            Told::Background(background) => background.with_response(see),
        }
    }

    fn is_final(&self) -> bool {
        self.with_response(|response| response.status.is_final())
    }

    /// About what it takes in memory: its JSON, and its log.
    fn bytes(&self) -> usize {
        let log_bytes = match &self.told {
            Told::Whole(_) => 0,
            Told::Background(background) => background.log_bytes(),
        };
        json_bytes(&self.input) + self.with_response(json_bytes) + log_bytes
    }
}

pub struct Store {
    most_responses: usize,
    most_bytes: usize,
    /// Responses that one may continue, all together.
    most_chained: usize,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    places: HashMap<String, Place>,
    /// Ids by when they were used.
    by_use: BTreeMap<u64, String>,
    last_use: u64,
    bytes: usize,
}

struct Place {
    record: Arc<Record>,
    used: u64,
    bytes: usize,
}

impl Store {
    pub fn new(limits: &ServerLimits) -> Self {
        Store {
            most_responses: limits.kept_responses,
            most_bytes: limits.kept_bytes,
            most_chained: limits.chained_responses,
            kept: Mutex::default(),
        }
    }

    /// Keeps a response, at the cost of those that were used longest ago.
    ///
    /// # Errors
    /// More is still being made than can be kept.
    pub fn keep(&self, record: Arc<Record>) -> Result<(), ApiError> {
        let bytes = record.bytes();
        let mut kept = lock(&self.kept);
        let id = record.id.clone();
        kept.insert(record, bytes);
        self.make_room(&mut kept);
        if self.is_full(&kept) {
            kept.remove(&id);
            let (responses, bytes) = (self.most_responses, self.most_bytes);
            return Err(ApiError::QueueFull(format!(
                "no room is left to keep the response: at most {responses} with {bytes} bytes are kept, and \
                 those that are still made stay"
            )));
        }
        Ok(())
    }

    /// Counts a response again whose size has changed.
    pub fn recount(&self, id: &str) {
        let Some(record) = self.get(id) else { return };
        let bytes = record.bytes();
        let mut kept = lock(&self.kept);
        kept.resize(id, bytes);
        self.make_room(&mut kept);
    }

    pub fn get(&self, id: &str) -> Option<Arc<Record>> {
        lock(&self.kept).used(id)
    }

    pub fn remove(&self, id: &str) -> Option<Arc<Record>> {
        lock(&self.kept).remove(id)
    }

    /// The items of a response and of all that it continues, in their order.
    ///
    /// # Errors
    /// One that is not kept, or still made, or too many of them.
    pub fn history(&self, id: &str) -> Result<Vec<Item>, ApiError> {
        const PARAM: &str = "previous_response_id";
        let mut records: Vec<Arc<Record>> = Vec::new();
        let mut next = Some(id.to_owned());
        while let Some(id) = next {
            let record = self.get(&id).ok_or(ApiError::NoPreviousResponse { id })?;
            if !record.is_final() {
                let message = format!("{PARAM}: `{}` is still being made", record.id);
                return Err(ApiError::field(PARAM, message));
            }
            if records.len() >= self.most_chained {
                let most = self.most_chained;
                let message =
                    format!("{PARAM}: more than {most} responses are chained: send the items as input");
                return Err(ApiError::field(PARAM, message));
            }
            next = record.previous.clone();
            records.push(record);
        }
        let mut items = Vec::new();
        for record in records.iter().rev() {
            items.extend(record.input.iter().cloned());
            record.with_response(|response| items.extend(response.output.iter().cloned()));
        }
        Ok(items)
    }

    pub fn item(&self, id: &str) -> Option<Item> {
        let record = self.get(&ItemIds::response_of(id)?)?;
        let of = |items: &[Item]| items.iter().find(|item| item.id() == id).cloned();
        of(&record.input).or_else(|| record.with_response(|response| of(&response.output)))
    }

    fn is_full(&self, kept: &Kept) -> bool {
        kept.places.len() > self.most_responses || kept.bytes > self.most_bytes
    }

    fn make_room(&self, kept: &mut Kept) {
        if !self.is_full(kept) {
            return;
        }
        let oldest_first: Vec<String> = kept.by_use.values().cloned().collect();
        for id in oldest_first {
            if !self.is_full(kept) {
                return;
            }
            if kept.places.get(&id).is_some_and(|place| place.record.is_final()) {
                kept.remove(&id);
            }
        }
    }
}

impl Kept {
    fn insert(&mut self, record: Arc<Record>, bytes: usize) {
        let used = self.next_use();
        self.by_use.insert(used, record.id.clone());
        self.bytes += bytes;
        self.places.insert(record.id.clone(), Place { record, used, bytes });
    }

    fn used(&mut self, id: &str) -> Option<Arc<Record>> {
        let used = self.next_use();
        let place = self.places.get_mut(id)?;
        let id = self.by_use.remove(&place.used)?;
        place.used = used;
        self.by_use.insert(used, id);
        Some(Arc::clone(&place.record))
    }

    fn resize(&mut self, id: &str, bytes: usize) {
        let Some(place) = self.places.get_mut(id) else { return };
        self.bytes = self.bytes - place.bytes + bytes;
        place.bytes = bytes;
    }

    fn remove(&mut self, id: &str) -> Option<Arc<Record>> {
        let place = self.places.remove(id)?;
        self.by_use.remove(&place.used);
        self.bytes -= place.bytes;
        Some(place.record)
    }

    fn next_use(&mut self) -> u64 {
        self.last_use += 1;
        self.last_use
    }
}

fn json_bytes(value: &(impl Serialize + ?Sized)) -> usize {
    struct Counted(usize);

    impl Write for Counted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut counted = Counted(0);
    // Counting cannot fail.
    let _ = serde_json::to_writer(&mut counted, value);
    counted.0
}
