module llamabi

go 1.24
