-- Statistics and log are cleared in one call, if at all, so their progress is not stored any more.
alter table recollect.wiped
    drop column analysed,
    drop column ended,
    drop column upto;
