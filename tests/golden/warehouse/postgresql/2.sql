UPDATE visits SET note = 'second day' WHERE id = 5;
