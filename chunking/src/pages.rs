//! A sparse list in pages, allocated on first write, so that a distant index costs one page and not
//! everything before it.

const PAGE_ITEMS: usize = 512;

/// A list of values that are their default where nothing was put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pages<T> {
    pages: Vec<Option<Box<[T; PAGE_ITEMS]>>>,
}

impl<T: Copy + Default> Pages<T> {
    pub(crate) const fn new() -> Self {
        Pages { pages: Vec::new() }
    }

    pub(crate) fn get(&self, at: usize) -> T {
        let page = self.pages.get(at / PAGE_ITEMS).and_then(Option::as_deref);
        page.and_then(|page| page.get(at % PAGE_ITEMS)).copied().unwrap_or_default()
    }

    /// The place itself, made if it was not there.
    pub(crate) fn at_mut(&mut self, at: usize) -> Option<&mut T> {
        let number = at / PAGE_ITEMS;
        if number >= self.pages.len() {
            self.pages.resize(number + 1, None);
        }
        let page =
            self.pages.get_mut(number)?.get_or_insert_with(|| Box::new([T::default(); PAGE_ITEMS]));
        page.get_mut(at % PAGE_ITEMS)
    }

    /// Bytes that it takes.
    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> usize {
        let pages = self.pages.iter().flatten().count() * PAGE_ITEMS * size_of::<T>();
        pages + self.pages.capacity() * size_of::<usize>()
    }
}

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Pages { pages: Vec::new() }
    }
}
