//! The pages of one pool: which are free, and how many owners each of the others has.

use crate::{PageId, Pool};

/// Hands out pages last-freed-first, lowest id first while none was freed: the same calls give the same pages,
/// which is what lets a failed run be replayed from its plans.
#[derive(Debug)]
pub(crate) struct Pages {
    owners: Vec<u32>,
    free: Vec<PageId>,
}

impl Pages {
    /// At most `u32::MAX` pages, which is as many as a `PageId` can name.
    pub fn new(count: usize) -> Self {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Pages { owners: vec![0; count as usize], free: (0..count).rev().map(PageId).collect() }
    }

    pub fn count(&self) -> usize {
        self.owners.len()
    }

    pub fn free_count(&self) -> usize {
        self.free.len()
    }

    /// A free page, now with one owner.
    pub fn take(&mut self) -> Option<PageId> {
        let page = self.free.pop()?;
        *self.owners_mut(page) = 1;
        Some(page)
    }

    /// Counts one more owner.
    pub fn share(&mut self, page: PageId) {
        debug_assert!(self.owners[page.0 as usize] > 0, "a free page is shared");
        *self.owners_mut(page) += 1;
    }

    /// Counts one owner less; the last one frees the page.
    pub fn release(&mut self, page: PageId) {
        debug_assert!(self.owners[page.0 as usize] > 0, "a free page is released");
        let owners = self.owners_mut(page);
        *owners -= 1;
        if *owners == 0 {
            self.free.push(page);
        }
    }

    pub fn is_shared(&self, page: PageId) -> bool {
        self.owners[page.0 as usize] > 1
    }

    fn owners_mut(&mut self, page: PageId) -> &mut u32 {
        &mut self.owners[page.0 as usize]
    }

    /// Compares the counts with `found`, the owners that a walk over all tables met (one count a page).
    pub fn check(&self, pool: Pool, found: &[u32]) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut times_free = vec![0_u32; self.owners.len()];
        for page in &self.free {
            match times_free.get_mut(page.0 as usize) {
                Some(times) => *times += 1,
                None => wrong.push(format!("{pool:?} page {}: free, but the pool has no such page", page.0)),
            }
        }
        for (page, &counted) in self.owners.iter().enumerate() {
            if counted != found[page] {
                wrong.push(format!("{pool:?} page {page}: {counted} owners counted, {} found", found[page]));
            }
            match (counted, times_free[page]) {
                (0, 0) => wrong.push(format!("{pool:?} page {page}: leaked, neither owned nor free")),
                (0, 1) | (1.., 0) => {}
                (0, times) => wrong.push(format!("{pool:?} page {page}: {times} times in the free list")),
                (owners, _) => {
                    wrong.push(format!("{pool:?} page {page}: free, but {owners} owners are counted"))
                }
            }
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_lowest_first_then_last_freed_first() {
        let mut pages = Pages::new(3);
        let (a, b) = (pages.take().unwrap(), pages.take().unwrap());
        assert_eq!((a, b), (PageId(0), PageId(1)));
        pages.release(a);
        assert_eq!(pages.take(), Some(PageId(0)));
        assert_eq!(pages.take(), Some(PageId(2)));
        assert_eq!(pages.take(), None);
    }

    #[test]
    fn a_shared_page_is_freed_by_its_last_owner() {
        let mut pages = Pages::new(1);
        let page = pages.take().unwrap();
        pages.share(page);
        assert!(pages.is_shared(page));
        pages.release(page);
        assert_eq!(pages.free_count(), 0);
        pages.release(page);
        assert_eq!(pages.free_count(), 1);
    }

    #[test]
    fn the_check_names_every_kind_of_damage() {
        let sound = Pages { owners: vec![0, 2], free: vec![PageId(0)] };
        assert_eq!(sound.check(Pool::Csa, &[0, 2]), Vec::<String>::new());
        let damaged =
            Pages { owners: vec![0, 0, 1, 3], free: vec![PageId(1), PageId(1), PageId(2), PageId(9)] };
        assert_eq!(
            damaged.check(Pool::Hca, &[0, 0, 1, 2]),
            [
                "Hca page 9: free, but the pool has no such page",
                "Hca page 0: leaked, neither owned nor free",
                "Hca page 1: 2 times in the free list",
                "Hca page 2: free, but 1 owners are counted",
                "Hca page 3: 3 owners counted, 2 found",
            ]
        );
    }
}
