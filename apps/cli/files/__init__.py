"""`zsq --help`, "Keep a copy" and "A stopped broker's files": backup, restore, fsck, dump, import-nsqd, export-nsqd."""
